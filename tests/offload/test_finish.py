"""The whole model on the target alone is run once, and again where what it rests on changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tapml.compiler.link import link_entries
from tapml.compiler.merged_launches import launch_counts
from tapml.graph.plan import GraphPlan
from tapml.offload import finish
from tapml.offload.final_run import FinalRun
from tapml_targets.errors import EXIT_DEVICE_LOST, DeviceLostError, DeviceRestartedError
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tests.compiler.independent_launches import LIBRARIES, Steps
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report

pytestmark = pytest.mark.slow


def test_what_passed_is_not_run_again(finished: FinishedSession, tmp_path: Path) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "the whole model on the target: as the journal has it" in ended.errors
    assert "end-to-end validation" not in ended.errors
    again, first = read_report(session), finished.report
    assert again["final"] == first["final"] | {
        **{name: again["final"][name] for name in ("library_hash", "plan_hash", "device_bytes")},
        "reused": True,
    }
    assert again["outcome"] == first["outcome"]


@pytest.mark.parametrize("file", ["library.msgpack", "plan.msgpack"])
def test_what_is_not_in_the_folder_any_more_is_made_anew(
    finished: FinishedSession, tmp_path: Path, file: str
) -> None:
    session = finished.copy(tmp_path / "session")
    kept = session / "finished" / file
    before = kept.read_bytes()
    kept.unlink()
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "end-to-end validation" in ended.errors
    assert kept.read_bytes() == before


def test_a_device_with_less_room_takes_the_pass_back(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here(
        "offload", "--session", session, "--device-memory", "210k", cache=finished.cache
    )
    assert ended.exit_code == 1
    assert read_report(session)["outcome"]["status"] == "not run"
    assert not (session / "finished" / "library.msgpack").exists()


def test_what_passed_has_its_independent_launches_merged(finished: FinishedSession) -> None:
    library = unpack((finished.folder / "finished" / "library.msgpack").read_bytes())
    counts = finished.report["final"]["launches"]
    assert {name: after for name, (_, after) in counts.items()} == launch_counts(library)
    before, after = counts["decode"]
    # Projections of queries, keys and values, of gate and up: three launches less in each layer.
    assert after <= before - 3 * 2


@pytest.mark.parametrize("why", ["--no-merge", "wrong", "not built"])
def test_launches_stay_apart_where_they_shall_or_must(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    session = finished.copy(tmp_path / "session")
    kept = session / "finished" / "library.msgpack"
    kept.unlink()
    options = [why] if why == "--no-merge" else []
    changed: Mapping[str, tuple[bytes, bytes]] = {
        "wrong": (b"tapml_group = get_group_id", b"tapml_group = 0 * get_group_id"),
        "not built": (b"tapml_group = get_group_id", b"tapml_group = no_such_function"),
    }
    if why in changed:
        monkeypatch.setattr(finish, "link_entries", _changing(*changed[why]))
    ended = run_here("offload", "--session", session, *options, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert ("launches stay apart" in ended.errors) == (why in changed)
    assert "launches" not in read_report(session)["final"]
    library = unpack(kept.read_bytes())
    before = {name: before for name, (before, _) in finished.report["final"]["launches"].items()}
    assert launch_counts(library) == before


def test_a_device_lost_over_merged_launches_is_not_given_them_again(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = finished.copy(tmp_path / "session")
    kept = session / "finished" / "library.msgpack"
    kept.unlink()
    crash = b"tapml_crash = (size_t)*(volatile __global int*)8, tapml_group = get_group_id"
    monkeypatch.setattr(finish, "link_entries", _changing(b"tapml_group = get_group_id", crash))
    lost = run_here("offload", "--session", session, cache=finished.cache)
    assert lost.exit_code == EXIT_DEVICE_LOST, lost.errors
    assert "while the whole model was tried with independent launches merged: " in lost.errors
    assert "they stay apart from now on" in lost.errors
    assert not kept.exists()
    again = run_here("offload", "--session", session, cache=finished.cache)
    assert again.exit_code == 0, again.errors
    assert "note: launches stay apart, the device was lost over merged ones" in again.errors
    before = {name: before for name, (before, _) in finished.report["final"]["launches"].items()}
    assert launch_counts(unpack(kept.read_bytes())) == before


@pytest.mark.parametrize(
    ("error", "elsewhere", "blamed"),
    [
        (DeviceLostError("the server ended: signal SIGABRT"), False, True),
        (DeviceRestartedError("the worker of this session died"), True, True),
        (DeviceLostError("the connection to the server dropped"), True, False),
    ],
)
def test_merged_launches_are_not_blamed_for_the_way_to_a_device(
    monkeypatch: pytest.MonkeyPatch, error: DeviceLostError, elsewhere: bool, blamed: bool
) -> None:
    recorded: list[Any] = []
    bench: Any = SimpleNamespace(
        elsewhere=elsewhere,
        journal=SimpleNamespace(record=lambda *row: recorded.append(row)),
        model=SimpleNamespace(name="tiny"),
    )
    made = Steps(kept=("a", "b"))
    made.call("shift", "x", "a")
    made.call("turn", "x", "b")
    apart, merged = (link_entries(made.plan(), LIBRARIES, merge=each) for each in (False, True))
    key: Any = None

    def lost(*_: object) -> FinalRun:
        raise error

    monkeypatch.setattr(finish, "_whole", lost)
    with pytest.raises(type(error), match="with independent launches merged"):
        finish._with_merged_launches(bench, apart, merged, key)
    assert bool(recorded) == blamed


def _changing(old: bytes, new: bytes) -> Callable[..., Library]:
    """Linking that puts a fault into one merged kernel."""

    def link(plan: GraphPlan, libraries: Mapping[str, Library], *, merge: bool = False) -> Library:
        library = link_entries(plan, libraries, merge=merge)
        modules = list(library.modules)
        merged = [index for index, module in enumerate(modules) if old in module.code]
        assert bool(merged) == merge
        for index in merged[:1]:
            modules[index] = replace(modules[index], code=modules[index].code.replace(old, new))
        return replace(library, modules=tuple(modules))

    return link
