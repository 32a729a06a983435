"""One carved test: the paper's t = (F, I, O), an operator with its inputs and outputs."""

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
    from tapml.suite.tensors import RunRecord, SuiteTensors


@dataclass(frozen=True)
class TensorRecord:
    """A tensor of a test, on disk.

    Attributes
    ----------
    parameter
        The operator's parameter.
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
        """Content hash, hexadecimal: the same key means the same bytes."""
        return self._tensors.key(self._run, self._index)

    @property
    def stored_key(self) -> str:
        """Content hash from the index alone, hexadecimal; does not read the tensor.

        The same key means the same bytes. Unlike :attr:`key`, equal bytes may have different keys
        in different suites.
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
    """A carved test.

    Attributes
    ----------
    id
        Readable and unique in its suite: call site, prompt, step.
    operator, operator_hash
        Name in the plan and structural hash.
    site, entry, layer
        The call site; `layer` is None outside decoder layers.
    prompt, step
        Index of the prompt, and of its run: 0 is the prefill.
    symbols
        The operator's integer arguments.
    shape_symbols
        The entry's shape symbols in this run.
    inputs, outputs
        In the operator's parameter order.
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
        """Hash of operator, inputs and outputs by content, hexadecimal; the same in every suite."""
        return self._digest(tensor.key for tensor in (*self.inputs, *self.outputs))

    @property
    def stored_key(self) -> str:
        """The same from the index alone; see :attr:`TensorRecord.stored_key`."""
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
