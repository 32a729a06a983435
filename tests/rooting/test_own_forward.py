"""The wrapper against the model's own forward: over every family, and with faults planted in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tapml.models import LoadedModel, load_model
from tapml.models.encoder_decoder import LoadedEncoderDecoder
from tapml.models.entries import StaticCache
from tapml.models.families import families
from tapml.models.families import masks as family_masks
from tapml.models.huggingface import load_any
from tapml.models.recurrent import LoadedRecurrent, RecurrentForward
from tapml.rooting.own_forward import OWN_FORWARD_TOLERANCE, root_wrapper
from tapml_targets.errors import MismatchError
from tests.models.families import SAMPLES, make_family

# A plain module of tapml's own is its entry as it is.
WRAPPED = sorted(SAMPLES)


def sample(folder: Path, family: str, **changes: Any) -> LoadedModel:
    return load_model(make_family(folder / "model", family, **changes))


def test_every_family_has_a_sample() -> None:
    assert set(SAMPLES) == {name for name in families() if name != "digits_cnn"}


@pytest.mark.parametrize("family", WRAPPED)
def test_the_wrapper_computes_what_the_model_computes(tmp_path: Path, family: str) -> None:
    model = load_any(make_family(tmp_path / "model", family))
    if families()[family].published is None:
        assert type(model.module).__name__ in families()[family].architectures
    assert [step.entry for step in model.own_steps()]
    assert root_wrapper(model) < OWN_FORWARD_TOLERANCE["float32"] / 10


@pytest.mark.parametrize("family", ["baichuan", "falcon"])
def test_a_model_with_alibi_is_computed_too(tmp_path: Path, family: str) -> None:
    model = sample(tmp_path, family, alibi=True)
    assert root_wrapper(model) < OWN_FORWARD_TOLERANCE["float32"] / 10


def arguments_of(model: LoadedModel, change: Callable[[Tensor], Tensor]) -> LoadedModel:
    """The model in a family that changes the positions of decode."""

    def arguments(module: Any, positions: Tensor, mask: Tensor) -> Mapping[str, Any]:
        moved = change(positions) if positions.shape[1] == 1 else positions
        return {**model.family.arguments(module, positions, mask), "position_ids": moved}

    return replace(model, family=replace(model.family, arguments=arguments))


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_a_wrong_rotary_offset_is_named_at_the_first_decode_step(
    tmp_path: Path, family: str
) -> None:
    model = arguments_of(sample(tmp_path, family), lambda positions: positions + 1)
    with pytest.raises(MismatchError, match=r"decode differs .* at step 1 \(position 8\)"):
        root_wrapper(model)


def test_a_cache_row_off_by_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sample(tmp_path, "gpt_neox")
    whole = StaticCache._store

    def shifted(self: StaticCache, stored: Tensor, new: Tensor) -> Tensor:
        if self._single:
            self._rows, rows = torch.roll(self._rows, 1), self._rows
            try:
                return whole(self, stored, new)
            finally:
                self._rows = rows
        return whole(self, stored, new)

    monkeypatch.setattr(StaticCache, "_store", shifted)
    with pytest.raises(MismatchError, match=r"decode differs .* at step 1 "):
        root_wrapper(model)


def test_a_stale_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sample(tmp_path, "llama")
    whole = StaticCache.update

    def stale(self: StaticCache, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        new_key, new_value = whole(self, key, value, layer)
        if self._single and layer == 1:
            # The second layer forgets to keep what decode wrote: the next step misses it.
            self.updated[-1] = self._tensors[2 * layer + 1]
        return new_key, new_value

    monkeypatch.setattr(StaticCache, "update", stale)
    with pytest.raises(MismatchError, match=r"decode differs .* at step 2 "):
        root_wrapper(model)


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_off_by_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, off: int
) -> None:
    model = sample(tmp_path, family)
    whole = family_masks.within_window

    def moved(positions: Tensor, mask: Tensor, window: int) -> Tensor:
        return whole(positions, mask, window + off)

    monkeypatch.setattr(family_masks, "within_window", moved)
    with pytest.raises(MismatchError, match=r"prefill differs .* at step 0 "):
        root_wrapper(model)


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_a_cross_cache_of_another_layer_is_named_at_the_first_step(
    tmp_path: Path, family: str
) -> None:
    model = load_any(make_family(tmp_path / "model", family))
    assert isinstance(model, LoadedEncoderDecoder)
    whole = model.family.cross

    def swapped(module: Any) -> Any:
        return whole(module)[::-1]

    wrong = replace(model, family=replace(model.family, cross=swapped))
    with pytest.raises(MismatchError, match=r"decode differs .* at step 0 "):
        root_wrapper(wrong)


def test_a_step_that_forgets_its_distance_is_named(tmp_path: Path) -> None:
    model = load_any(make_family(tmp_path / "model", "t5"))
    assert isinstance(model, LoadedEncoderDecoder)
    stored = model.stored

    class Standing(type(stored)):  # type: ignore[misc]
        def prepare_step(self, source: Any, token_id: int, position: int) -> Any:
            step = stored.prepare_step(source, token_id, position)
            return step | {"position_ids": step["position_ids"] * 0}

    facts = {each: getattr(stored, each) for each in stored.__dataclass_fields__}
    model.__dict__["stored"] = Standing(**facts)
    with pytest.raises(MismatchError, match=r"decode differs .* at step 1 "):
        root_wrapper(model)


@pytest.mark.parametrize(
    ("family", "part"), [("rwkv6", 0), ("rwkv6", 1), ("rwkv6", 2), ("mamba2", 0), ("mamba2", 1)]
)
def test_a_recurrent_state_that_is_not_carried_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, part: int
) -> None:
    """Each that a layer keeps: last inputs, which the next run reads, and the matrix."""

    def forward(self: RecurrentForward, token_ids: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        logits, after = self.family.step(self.model, token_ids, state)
        kept = [*after]
        kept[part] = state[part]
        return (logits, *kept)

    monkeypatch.setattr(RecurrentForward, "forward", forward)
    with pytest.raises(MismatchError, match=r"decode differs .* at step 1 \(position 8\)"):
        root_wrapper(sample(tmp_path, family))


def test_a_wrong_alibi_slope_is_named(tmp_path: Path) -> None:
    """Of one head: half of what the class takes."""
    model = sample(tmp_path, "bloom")
    slopes: Any = model.module.get_submodule("transformer").alibi_slopes
    slopes[1] *= 0.5
    with pytest.raises(MismatchError, match=r"the wrapper's prefill differs"):
        root_wrapper(model)


def test_a_state_that_is_not_empty_at_the_start_is_named(tmp_path: Path) -> None:
    """What a prompt would begin with if the one before it had not been reset."""

    class NotReset(LoadedRecurrent):
        def empty_state(self) -> dict[str, Any]:
            return {name: each + 0.5 for name, each in super().empty_state().items()}

    found = sample(tmp_path, "mamba2")
    given = {each.name: getattr(found, each.name) for each in fields(found)}
    with pytest.raises(MismatchError, match=r"prefill differs .* at step 0"):
        root_wrapper(NotReset(**given))
