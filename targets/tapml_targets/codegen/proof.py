"""A proof that the 64-bit integers of a kernel can be 32-bit ones.

Some targets have no 64-bit integers, and TVM counts elements with them. Cutting them to 32
bits is right where it changes no result:

- Sums, differences and products may wrap around on the way. What is left of them as an index is
  right, since an element of a binding has an index below 2**31.
- What is compared, divided, shifted to the right, clamped, or made a floating-point number must
  have its true value, so it must lie within 32 bits whatever the shapes are; likewise what is
  written into a tensor of 64-bit integers.

A sum that shared or local memory holds grows by what is added, at most once for every step of the
loops around it; where elements are added to each other, as threads join their parts, it at most
doubles. So a count of predicates is as large as there are elements.

What is read from a tensor of 64-bit integers can be anything. As an index, or cut to 32 bits, its
low word is all that counts. Clamped between or compared with 32-bit values, it is read saturated,
which gives what the true value would have given. Anything else is refused here, and left to
:mod:`.wide_integers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.sums import UNKNOWN_STEPS, Sums
from tapml_targets.codegen.symbol_bounds import LaunchRange, Range
from tapml_targets.codegen.value_proof import ValueProof
from tapml_targets.codegen.value_ranges import ValueRanges
from tapml_targets.errors import CompileError

_WIDE: Final = "int64"
# Rounds until the ranges of what a reduction keeps in shared memory stand still.
_ROUNDS: Final = 6


def prove_narrow(function: Any, launch: LaunchRange) -> Mapping[str, str]:
    """Prove that 32 bits do for every integer of a device function.

    Parameters
    ----------
    function
        The device PrimFunc before code generation.
    launch
        What its scalars and grid can be.

    Returns
    -------
    mapping
        How each tensor of 64-bit integers that is read is to be read, :data:`~.value_proof.LOW` or
        :data:`~.value_proof.SATURATED`, by the name of its pointer.

    Raises
    ------
    CompileError
        If there is no proof; the message names the value and how large it may become.
    """
    if not _has_wide(function):
        return {}
    kept: dict[Any, Range] = {}
    for _ in range(_ROUNDS):
        proof = _Proof(function, launch, dict(kept))
        proof.statement(function.body)
        proof.finish()
        if proof.kept == kept:
            return proof.values.modes
        kept = proof.kept
    raise CompileError(
        "a 64-bit integer in shared or local memory grows with every step: its range is not known, "
        "and this target has 32 bits; keep the operator on the source"
    )


def _has_wide(function: Any) -> bool:
    found = False

    def look(node: Any) -> None:
        nonlocal found
        kind = node.ty.dtype if tirx.buffer.is_buffer_var(node) else node.ty
        found = found or str(kind) == _WIDE

    tvm_ffi.structural_walk(function, [((tvm.ir.Var, tvm.ir.TensorLoad, tirx.Cast), look)])
    return found


class _Proof:
    """One walk over a function, with what shared and local 64-bit memory is known to hold."""

    def __init__(self, function: Any, launch: LaunchRange, kept: dict[Any, Range]) -> None:
        self._ranges = ValueRanges(function, launch, kept)
        self._sums = Sums(self._ranges)
        self._steps = 1
        self.values = ValueProof(self._ranges)

    @property
    def kept(self) -> dict[Any, Range]:
        """What shared and local 64-bit memory was seen to be given."""
        return self._ranges.kept

    def finish(self) -> None:
        """Prove what the sums come to."""
        self._sums.finish()

    def statement(self, statement: Any) -> None:
        """Prove one statement and what is in it."""
        match type(statement).__name__:
            case "SeqStmt":
                for each in statement.seq:
                    self.statement(each)
            case "AttrStmt":
                self._ranges.bind_threads(statement)
                self.statement(statement.body)
            case "DeclBuffer":
                if isinstance(statement.data, tvm.ir.Var):
                    self.values.pointers[statement.buffer] = str(statement.data.name)
                    self._ranges.given.add(statement.buffer)
            case "Bind":
                self.values.prove(statement.value, exact=False)
                self._ranges.name(statement.var, statement.value)
            case "For":
                self._loop(statement)
            case "While":
                self.values.prove(statement.condition)
                before, self._steps = self._steps, UNKNOWN_STEPS
                self.statement(statement.body)
                self._steps = before
            case "IfThenElse":
                self.values.prove(statement.condition)
                self.statement(statement.then_case)
                if statement.else_case is not None:
                    self.statement(statement.else_case)
            case "BufferStore":
                self._store(statement)
            case "Evaluate":
                self.values.prove(statement.value)
            case "AllocBuffer":
                pass
            case kind:
                raise CompileError(f"this target has no counterpart of {kind}: {statement}")

    def _loop(self, loop: Any) -> None:
        self.values.prove(loop.min)
        self.values.prove(loop.extent)
        before = self._steps
        self._steps = min(before * max(self._ranges.bind_loop(loop), 1), UNKNOWN_STEPS)
        self.statement(loop.body)
        self._steps = before

    def _store(self, store: Any) -> None:
        for index in store.indices:
            self.values.prove(index, exact=False)
        if str(store.value.ty) != _WIDE:
            self.values.prove(store.value)
            return
        buffer = store.buffer
        if (added := self._sums.note(store, self._steps)) is not None:
            self.values.prove(added)
            if buffer in self.values.pointers:
                self.values.read_low(buffer)
            return
        self.values.prove(store.value)
        if buffer in self.values.pointers:
            self.values.require(store.value, f"is written to {self.values.pointers[buffer]!r} and")
            self._sums.begin(buffer, *self._ranges.of(store.value))
            return
        lower, upper = self._ranges.of(store.value)
        self._ranges.keep(buffer, lower, upper)
        self._sums.begin(buffer, lower, upper)
        self.values.require(store.value, "is kept in shared or local memory and")
