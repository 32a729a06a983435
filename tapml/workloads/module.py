"""Plain modules: tensors in and out, compared by classes, vectors or all numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from tapml.execute.arrays import Array
from tapml.models.stored import MODULE
from tapml.verdicts.modelwise import AllowedLogitError, WholeVerdict, allowed_logit_error
from tapml.verdicts.values import compare_values, scale_of
from tapml.workloads.one_call import OneCall
from tapml.workloads.trace import CaseTrace
from tapml_targets.errors import InputError

_Extent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_LARGEST = 1 << 30
_SHOWN = 4


@dataclass(frozen=True)
class Numbers:
    """An array as bytes, little-endian."""

    dtype: Literal[
        "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"
    ]
    shape: Annotated[tuple[_Extent, ...], msgspec.Meta(max_length=8)]
    data: Annotated[bytes, msgspec.Meta(max_length=_LARGEST)]

    @property
    def array(self) -> Array:
        """The numbers; raises :class:`InputError` if they do not fill the shape."""
        kind = np.dtype(self.dtype).newbyteorder("<")
        if len(self.data) != math.prod(self.shape) * kind.itemsize:
            raise InputError(f"an input of {len(self.data)} bytes: expected {list(self.shape)}")
        return np.frombuffer(self.data, dtype=kind).reshape(self.shape)


@dataclass(frozen=True)
class Input:
    """Inputs in the order of the module's arguments, and what people call them."""

    tensors: Annotated[tuple[Numbers, ...], msgspec.Meta(min_length=1, max_length=256)]
    text: str | None = None

    @classmethod
    def of(cls, arrays: Sequence[Array], text: str | None = None) -> Input:
        """From arrays; raises :class:`InputError` for what are no numbers."""
        try:
            tensors = [
                msgspec.convert(
                    {
                        "dtype": each.dtype.name,
                        "shape": each.shape,
                        "data": np.ascontiguousarray(each, each.dtype.newbyteorder("<")).tobytes(),
                    },
                    Numbers,
                )
                for each in map(np.asarray, arrays)
            ]
        except msgspec.ValidationError as error:
            raise InputError(f"an input: {error}") from error
        return cls(tuple(tensors), text)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """It has none."""
        return ()


class ModuleWorkload(OneCall[Input]):
    """One call of the module for each case."""

    entry = MODULE

    def cases(
        self, loaded: Any, texts: Sequence[str], tokens: Sequence[str], count: int
    ) -> tuple[Input, ...]:
        """Inputs that were given, or came with the model."""
        if texts or tokens:
            raise InputError(f"{loaded.name} takes neither text nor tokens: give no --prompt")
        if loaded.given:
            return tuple(Input.of(arrays, text) for arrays, text in loaded.given)
        samples = loaded.samples
        return tuple(
            Input.of(samples[index % len(samples)][0], samples[index % len(samples)][1])
            for index in range(count)
        )

    def as_case(self, given: Any) -> Input:
        """A case from an array, arrays in order, or arrays by name as well."""
        if isinstance(given, Input):
            return given
        if isinstance(given, Mapping):
            return Input.of(tuple(self._stored.prepare(given).values()))
        several = isinstance(given, list | tuple)
        return Input.of(tuple(map(np.asarray, given)) if several else (np.asarray(given),))

    def inputs(self, case: Input) -> dict[str, Array]:
        """The inputs in the module's dtypes."""
        made: dict[str, Array] = self._stored.prepare([each.array for each in case.tensors])
        return made

    def rows(self, case: Input, outputs: Sequence[Array]) -> Array:
        """A row for each element of the first output's batch; of `values`, one for each output."""
        if self._stored.measure != "values":
            return outputs[0].reshape(outputs[0].shape[0] if outputs[0].ndim else 1, -1)
        # Whole numbers keep their value in float64.
        kind = np.result_type(np.float32, *(np.asarray(each).dtype for each in outputs))
        rows = np.zeros((len(outputs), max(each.size for each in outputs)), dtype=kind)
        for row, each in zip(rows, outputs, strict=True):
            row[: each.size] = each.reshape(-1)
        return rows

    def by_name(self, outputs: Sequence[Array]) -> dict[str, Array]:
        """Every output under the module's name of it."""
        names = (each.name for each in self._stored.outputs)
        return dict(zip(names, outputs, strict=True))

    def texts(self, case: Input) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """None."""
        return ()

    def argument(self, *, takes_text: bool) -> str:
        """A file."""
        return "--input x.npy" if len(self._stored.inputs) == 1 else "--input inputs.npz"

    def from_arguments(
        self, texts: Sequence[str], tokens: Sequence[str], array: Any, codec: Any
    ) -> Input:
        """The arrays that the command line names."""
        if array is None or texts or tokens:
            raise InputError(
                f"{self._stored.name} takes {self._stored.signature}: give a file of it "
                f"({self.argument(takes_text=False)})"
            )
        case = self.as_case(array)
        self.inputs(case)
        return case

    def describe(self, case: Input, rows: Array) -> str:
        """Classes, vectors, or the first numbers of each output."""
        if self._stored.measure != "values":
            return super().describe(case, rows)
        firsts = (" ".join(f"{number:.4g}" for number in row[:_SHOWN]) for row in rows)
        outputs = zip(self._stored.outputs, firsts, strict=True)
        return "; ".join(f"{each.name}: {first} ..." for each, first in outputs)

    def allowed(self, rows: Array, rooted_deviation: float) -> AllowedLogitError:
        """Of `values`: relative to each output's largest number."""
        if self._stored.measure != "values":
            return super().allowed(rows, rooted_deviation)
        return allowed_logit_error(
            self._stored.dtype, np.ones(1), rooted_deviation / scale_of(rows[0])
        )

    def verdict(self, trace: CaseTrace, rows: Array) -> WholeVerdict:
        """Of `values`: every output, those of whole numbers exactly."""
        if self._stored.measure != "values":
            return super().verdict(trace, rows)
        outputs = [(each.name, "float" not in each.dtype) for each in self._stored.outputs]
        return compare_values(trace.outputs, rows, trace.allowed, outputs)

    def pack_case(self, case: Input) -> dict[str, Any]:
        """Dtypes, shapes, numbers in base 64, and text."""
        packed: dict[str, Any] = msgspec.to_builtins(case)
        return packed

    def unpack_case(self, data: Mapping[str, Any]) -> Input:
        """See :meth:`Workload.unpack_case`."""
        try:
            case = msgspec.convert(dict(data), Input)
        except msgspec.ValidationError as error:
            raise InputError(f"a stored input: {error}") from error
        self.inputs(case)
        return case


WORKLOAD = ModuleWorkload
