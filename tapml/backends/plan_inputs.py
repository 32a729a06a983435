"""What people give a model, as the inputs of its plan's entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from tapml.backends.runner import FEATURES, MASK, TOKENS, WRITTEN, Array, Input
from tapml.models.inputs import DECODE, PREFILL
from tapml.models.stored import (
    ENCODE,
    MODULE,
    StoredDecoder,
    StoredEncoder,
    StoredEncoderDecoder,
    StoredModule,
    StoredStepped,
)
from tapml_targets.errors import UnsupportedOperatorError

_FROM_MASK: Final = frozenset((MASK, "source_mask"))


class PlanInputs(Protocol):
    """Of one kind of model.

    Attributes
    ----------
    entries
        The names of the entries that a run takes, in order.
    """

    entries: tuple[str, ...]

    def inputs(self) -> list[Input]:
        """What people give: see :class:`tapml.backends.runner.Runner`."""

    def runs(self, inputs: Mapping[str, Array]) -> list[tuple[str, dict[str, Array]]]:
        """The entries that one call runs one after the other, with their inputs."""

    def source_of(self, entry: str, name: str) -> str:
        """The input of the model that an entry's input is made of."""

    def alone(self, entry: str, name: str, array: Array) -> Array:
        """An entry's input, made of the array of its source."""

    def cut(self, output: Array, inputs: Mapping[str, Array]) -> Array:
        """An output without the positions that no input has."""


def plan_inputs(model: Any) -> PlanInputs:
    """The inputs of a stored model.

    Raises
    ------
    UnsupportedOperatorError
        If it is of another kind.
    """
    for kind, found in _KINDS.items():
        # One that reads token by token has no entry for a whole text.
        if isinstance(model, kind) and not isinstance(model, StoredStepped):
            made: PlanInputs = found(model)
            return made
    raise UnsupportedOperatorError(
        f"the plan of {model.name} is of the kind {model.workload}, which `tapml offload` alone "
        "compares"
    )


class _OfModule:
    """Tensors, as they are."""

    entries = (MODULE,)

    def __init__(self, model: StoredModule) -> None:
        self._model = model

    def inputs(self) -> list[Input]:
        return [
            Input(
                each.name,
                tuple(extent if isinstance(extent, int) else None for extent in each.shape),
                each.dtype,
            )
            for each in self._model.inputs
        ]

    def runs(self, inputs: Mapping[str, Array]) -> list[tuple[str, dict[str, Array]]]:
        return [(MODULE, self._model.prepare(inputs))]

    def source_of(self, entry: str, name: str) -> str:
        del entry
        return name

    def alone(self, entry: str, name: str, array: Array) -> Array:
        del entry, name
        return array

    def cut(self, output: Array, inputs: Mapping[str, Array]) -> Array:
        del inputs
        return output


class _OfDecoder:
    """One whole text a run."""

    entries = (PREFILL,)

    def __init__(self, model: StoredDecoder) -> None:
        self._model = model

    def inputs(self) -> list[Input]:
        return [Input(TOKENS, (1, None), "int64")]

    def runs(self, inputs: Mapping[str, Array]) -> list[tuple[str, dict[str, Array]]]:
        return [(PREFILL, self._model.prepare_prefill(_row(inputs[TOKENS])))]

    def source_of(self, entry: str, name: str) -> str:
        """Positions and masks follow from the tokens."""
        del entry, name
        return TOKENS

    def alone(self, entry: str, name: str, array: Array) -> Array:
        del entry
        return self._model.prepare_prefill(_row(array))[name]

    def cut(self, output: Array, inputs: Mapping[str, Array]) -> Array:
        del inputs
        return output


class _OfEncoder:
    """A batch of sentences a run, with the mask of each."""

    entries = (ENCODE,)

    def __init__(self, model: StoredEncoder) -> None:
        self._model = model

    def inputs(self) -> list[Input]:
        return [Input(name, (self._model.batch, None), "int64") for name in (TOKENS, MASK)]

    def runs(self, inputs: Mapping[str, Array]) -> list[tuple[str, dict[str, Array]]]:
        sentences = zip(inputs[TOKENS], inputs[MASK], strict=True)
        return [(ENCODE, self._model.prepare([_kept(*each) for each in sentences]))]

    def source_of(self, entry: str, name: str) -> str:
        del entry
        return MASK if name in _FROM_MASK else TOKENS

    def alone(self, entry: str, name: str, array: Array) -> Array:
        del entry
        if name in _FROM_MASK:
            return self._model.prepare([[0] * int(each.sum()) for each in array])[name]
        return self._model.prepare([_row(each) for each in array])[name]

    def cut(self, output: Array, inputs: Mapping[str, Array]) -> Array:
        return output[:, : inputs[TOKENS].shape[1]] if self._model.measure == "vectors" else output


class _OfEncoderDecoder:
    """One source and the text that the decoder reads a run: the source once, then token by token.

    Of the decoder, nodes are those of the first token, when its own cache is empty.
    """

    entries = (ENCODE, DECODE)

    def __init__(self, model: StoredEncoderDecoder) -> None:
        self._model = model

    def inputs(self) -> list[Input]:
        features = self._model.features
        source = (
            [Input(name, (1, None), "int64") for name in (TOKENS, MASK)]
            if features is None
            else [Input(FEATURES, (1, *features), self._model.dtype)]
        )
        return [*source, Input(WRITTEN, (1, None), "int64")]

    def runs(self, inputs: Mapping[str, Array]) -> list[tuple[str, dict[str, Array]]]:
        source = self._model.prepare_source(
            inputs[FEATURES][0]
            if self._model.features is not None
            else _kept(inputs[TOKENS][0], inputs[MASK][0])
        )
        steps = enumerate(_row(inputs[WRITTEN]))
        return [
            (ENCODE, source),
            *((DECODE, self._model.prepare_step(source, token, at)) for at, token in steps),
        ]

    def source_of(self, entry: str, name: str) -> str:
        if name == FEATURES:
            return FEATURES
        if name in _FROM_MASK and not (entry == DECODE and name == MASK):
            return MASK
        return WRITTEN if entry == DECODE else TOKENS

    def alone(self, entry: str, name: str, array: Array) -> Array:
        found = self.source_of(entry, name)
        if found == WRITTEN:
            return self._model.prepare_step({}, int(array.flat[0]), 0)[name]
        given = [0] * int(array.sum()) if found == MASK else _row(array)
        return self._model.prepare_source(array[0] if found == FEATURES else given)[name]

    def cut(self, output: Array, inputs: Mapping[str, Array]) -> Array:
        del inputs
        return output


def _row(token_ids: Array) -> list[int]:
    return [int(each) for each in np.ravel(token_ids)]


def _kept(token_ids: Array, mask: Array) -> Sequence[int]:
    return _row(token_ids[mask > 0])


_KINDS: Final[Mapping[type, type]] = {
    StoredModule: _OfModule,
    StoredDecoder: _OfDecoder,
    StoredEncoder: _OfEncoder,
    StoredEncoderDecoder: _OfEncoderDecoder,
}
