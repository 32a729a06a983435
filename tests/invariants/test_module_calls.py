"""Forward calls are seen whatever way leads to them, and PyTorch is left as it was."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tapml.invariants.record import FORWARD, Record
from tapml.invariants.recording import Recording, recorded


class Aliased(nn.Linear):
    """A class that assigns the inherited method again, as some do to declare its types."""

    __call__ = nn.Module.__call__


class Direct(nn.Linear):
    """A class whose own call goes past that of PyTorch."""

    def __call__(self, x: torch.Tensor) -> Any:
        """As any module, with its hooks."""
        return self._call_impl(x)  # type: ignore[no-untyped-call]


class Stops(nn.Module):
    """A model that leaves its forward call in one way or another."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, raises: bool) -> Any:
        """The part's result, or a KeyboardInterrupt."""
        found = self.part(x)
        if raises:
            raise KeyboardInterrupt
        return found


def calls(recording: Recording, name: str = FORWARD) -> list[Record]:
    """The calls of one API."""
    return [call for window in recording.run().windows for call in window.calls(name)]


@pytest.mark.parametrize("kind", [nn.Linear, Aliased, Direct])
def test_a_class_may_have_a_call_of_its_own(kind: type[nn.Linear]) -> None:
    model = kind(2, 1)
    with recorded() as recording:
        model(torch.ones(3, 2))
    (whole,) = calls(recording)
    assert whole.fields["class"] == kind.__qualname__
    assert whole.fields["result.shape"] == [3, 1]


def test_a_hook_of_the_script_runs_once_and_may_remove_itself() -> None:
    model = nn.Linear(2, 1)
    seen: list[int] = []

    def hook(*_: Any) -> None:
        handle.remove()
        seen.append(len(seen))

    with recorded() as recording:
        handle = model.register_forward_hook(hook)
        model(torch.ones(3, 2))
        model(torch.ones(3, 2))
    assert seen == [0]
    assert len(calls(recording)) == 2


def test_a_call_that_raises_is_over() -> None:
    model = Stops()
    with recorded() as recording:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(3, 2), raises=True)
        model(torch.ones(3, 2), raises=False)
    broken, whole = calls(recording)
    assert broken.fields["raised"] == "KeyboardInterrupt"
    assert whole.fields["result.shape"] == [3, 2]
    assert "raised" not in whole.fields


def test_threads_have_models_of_their_own() -> None:
    began, ends = threading.Event(), threading.Event()

    class Waits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            began.set()
            assert ends.wait(60)
            return super().forward(x)

    other, model = Waits(2, 1), nn.Linear(2, 1)
    thread = threading.Thread(target=other, args=(torch.ones(1, 2),))
    with recorded() as recording:
        thread.start()
        assert began.wait(60)
        model(torch.ones(1, 2))
        ends.set()
        thread.join()
        model(torch.ones(1, 2))
    assert [each.fields["class"] for each in calls(recording)].count("Linear") == 2


def test_what_pytorch_imports_meanwhile_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler asks for the functions that it was imported with.
    meanwhile: Any = ModuleType("torch.meanwhile")
    monkeypatch.setitem(sys.modules, "torch.meanwhile", meanwhile)
    before = nn.Module.__call__, nn.Module._call_impl
    with recorded(), recorded():
        meanwhile.kept = nn.Module._call_impl
        assert meanwhile.kept is not before[1]
    assert (nn.Module.__call__, nn.Module._call_impl) == before
    assert meanwhile.kept is before[1]


def test_a_function_that_a_script_keeps_is_not_recorded_later() -> None:
    model = nn.Linear(2, 1)
    call: Any
    with recorded() as recording:
        clip, call = nn.utils.clip_grad_norm_, model._call_impl
    rows = len(recording.rows)
    # More than are handed over together.
    for _ in range(300):
        clip(model.parameters(), 1.0)
        call(torch.ones(1, 2))
    assert len(recording.rows) == rows


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_modules_run_inside_transforms_and_traces() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    rows = torch.ones(3, 2)
    plain = model(rows)
    with recorded() as recording:
        assert torch.equal(torch.vmap(model)(rows), plain)
        trace: Any = torch.jit.trace
        assert torch.equal(trace(model, rows)(rows), plain)
        nn.Linear(2, 1, device="meta")(torch.ones(1, 2, device="meta"))
        model(rows[:1])
    assert calls(recording)[-1].fields["result.shape"] == [1, 1]
