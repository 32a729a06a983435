"""One carved test: the paper's t = (F, I, O), an operator with what it read and what it wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from tapml.execute.arrays import Array
from tapml_targets.dtype import dtype
from tapml_targets.library import Role

if TYPE_CHECKING:
    from tapml.carving.suite_tensors import RunRecord, SuiteTensors


@dataclass(frozen=True)
class TensorRecord:
    """A tensor of a test, on disk.

    Attributes
    ----------
    parameter
        The operator's parameter it was given for.
    role
        ``input`` or ``output``.
    value
        Its name in the plan.
    shape, dtype
        Concrete; the dtype is a name of :mod:`tapml_targets.dtype`.
    lifetime
        ``weight``, ``state``, ``input`` or ``activation``.
    """

    parameter: str
    role: Role
    value: str
    shape: tuple[int, ...]
    dtype: str
    lifetime: str
    _tensors: SuiteTensors = field(repr=False, compare=False)
    _run: RunRecord = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return dtype(self.dtype).nbytes(prod(self.shape))

    @property
    def key(self) -> str:
        """Identifies the content, hexadecimal: the same key means the same bytes."""
        return self._tensors.key(self._run, self._index)

    @property
    def stored_key(self) -> str:
        """Identifies the content by the index alone, hexadecimal; reads no byte of the tensor.

        The same key means the same bytes. Unlike :attr:`key`, equal bytes may have another key in
        a suite that was carved otherwise.
        """
        return self._tensors.stored_digest(self._run, self._index).hex()

    def read(self, *, verify: bool = False) -> Array:
        """The content as a read-only array of the raw bits; mapped from disk where possible.

        Parameters
        ----------
        verify
            Whether to check the bytes on disk against their hash.

        Raises
        ------
        InputError
            If the suite is damaged.
        """
        return self._tensors.read(self._run, self._index, verify=verify)


@dataclass(frozen=True)
class CarvedTest:
    """A test.

    Attributes
    ----------
    id
        Unique in its suite and readable: call site, prompt, step.
    operator, operator_hash
        Name in the plan and structural hash.
    site, entry, layer
        The call site; `layer` is None outside decoder layers.
    prompt, step
        The prompt, counted from 0, and the run of it: 0 is the first, the prefill.
    symbols
        The integers the operator takes beside its tensors.
    shape_symbols
        The entry's shape symbols in this run.
    inputs, outputs
        What was read and written, in the operator's parameter order.
    """

    id: str
    operator: str
    operator_hash: str
    site: str
    entry: str
    layer: int | None
    prompt: int
    step: int
    symbols: Mapping[str, int]
    shape_symbols: Mapping[str, int]
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]

    @property
    def key(self) -> str:
        """Identifies operator, inputs and outputs by content, hexadecimal, in whatever suite."""
        return self._digest(tensor.key for tensor in (*self.inputs, *self.outputs))

    @property
    def stored_key(self) -> str:
        """The same without reading a tensor; see :attr:`TensorRecord.stored_key`."""
        return self._digest(tensor.stored_key for tensor in (*self.inputs, *self.outputs))

    def _digest(self, keys: Iterable[str]) -> str:
        digest = hashlib.sha256(self.operator_hash.encode())
        digest.update(repr(sorted(self.symbols.items())).encode())
        for tensor, key in zip((*self.inputs, *self.outputs), keys, strict=True):
            content: Any = (tensor.role, tensor.dtype, tensor.shape, key)
            digest.update(repr(content).encode())
        return digest.hexdigest()

    def read_inputs(self, *, verify: bool = False) -> list[Array]:
        """The arrays the operator read; see :meth:`TensorRecord.read`."""
        return [tensor.read(verify=verify) for tensor in self.inputs]

    def read_outputs(self, *, verify: bool = False) -> list[Array]:
        """The arrays the operator wrote; see :meth:`TensorRecord.read`."""
        return [tensor.read(verify=verify) for tensor in self.outputs]
