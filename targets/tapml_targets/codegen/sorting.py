"""sort, argsort and topk: kernels written by hand, chosen by what the operator means.

TVM's own sorts for GPUs use the third axis of the grid, which some platforms keep for themselves.
In their form for processors they are one call of a library function, whose arguments say
everything: the axis, the direction, how many are kept.

All of them are a stable merge sort of places in a row (:mod:`.sort_kernels`). Runs of one
workgroup's size are sorted by counting; neighbouring runs are merged, two merges to a round, so
that the result is always in the same workspace; then what is asked for is written. Equal elements
keep their order, and NaN is larger than any number, as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tvm import tirx

from tapml_targets.codegen.expression import call_name, fold
from tapml_targets.codegen.handwritten import (
    Build,
    blocks_of,
    launch,
    library_of,
    threads_for,
)
from tapml_targets.codegen.sort_kernels import STORED, merge_runs, sort_runs, write_sorted
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product
from tapml_targets.library import Launch, Library, Loop, Parameter, Statement, Workspace
from tapml_targets.limits import Limits

_MEANINGS: Final = {
    "tvm.contrib.sort.sort": "values",
    "tvm.contrib.sort.argsort": "indices",
    "tvm.contrib.sort.topk": "both",
}
_WORD: Final = 4


@dataclass(frozen=True)
class _Sort:
    """What an operator means.

    `values` and `indices` are the tensors to write, `kept` how many elements of each row.
    """

    given: Parameter
    values: Parameter | None
    indices: Parameter | None
    axis: int
    ascending: bool
    kept: Expression

    @property
    def length(self) -> Expression:
        """Extent of the axis."""
        return self.given.shape[self.axis]

    @property
    def inner(self) -> Expression:
        """Elements from one of a row to the next."""
        return product(self.given.shape[self.axis + 1 :])

    @property
    def rows(self) -> Expression:
        """Rows that are sorted, each by itself."""
        return product((*self.given.shape[: self.axis], self.inner))


def sort_library(
    source: OperatorSource, function: Any, limits: Limits, build: Build
) -> Library | None:
    """The Library of a sort; None where `function` is none.

    Raises
    ------
    CompileError
        If it sorts elements of a type that there is no kernel for.
    """
    sort = _meaning(source, function)
    if sort is None:
        return None
    threads = threads_for(limits)
    dtype, ascending = sort.given.dtype, sort.ascending
    kernels = {
        "sort_runs": sort_runs(dtype, threads, ascending=ascending),
        "merge_runs": merge_runs(dtype, threads, ascending=ascending),
    }
    for name, tensor in _written(sort):
        kernels[name] = write_sorted(dtype, tensor.dtype, threads, values=name == "write_values")
    statements = tuple(_statements(sort, threads))
    merges = any(isinstance(statement, Loop) for statement in statements)
    spaces = ("order", "merged") if merges else ("order",)
    nbytes = product((*sort.given.shape, _WORD))
    workspaces = tuple(Workspace(space, nbytes) for space in spaces)
    return library_of(source, kernels, statements, workspaces, build)


def _written(sort: _Sort) -> Iterator[tuple[str, Parameter]]:
    """The kernels that write, each with its tensor."""
    if sort.values is not None:
        yield "write_values", sort.values
    if sort.indices is not None:
        yield "write_indices", sort.indices


def _meaning(source: OperatorSource, function: Any) -> _Sort | None:
    body = getattr(getattr(function.body, "block", None), "body", None)
    call: Any = getattr(body, "value", None)
    if call_name(call) != "tvm_call_packed":
        return None
    name = str(getattr(call.args[0], "value", ""))
    if name not in _MEANINGS:
        return None
    told = [a for a in call.args[1:] if call_name(a) != "tvm_stack_make_array"]
    kept = 0
    writes = _MEANINGS[name]
    if len(told) > 2:
        kept = int(told[0].value)
        writes = str(getattr(told[2], "value", told[2]))
        told = [told[1], told[3]]
    given, *written = source.parameters
    axis = int(told[0].value) % len(given.shape)
    wanted = ("values", "indices") if writes == "both" else (writes,)
    if len(written) != len(wanted) or given.dtype not in STORED:
        raise CompileError(
            f"{name} of {given.dtype} is not among what can be sorted here: "
            f"{', '.join(STORED)}; keep the operator on the source"
        )
    outputs = dict(zip(wanted, written, strict=True))
    return _Sort(
        given=given,
        values=outputs.get("values"),
        indices=outputs.get("indices"),
        axis=axis,
        ascending=bool(told[1].value) if isinstance(told[1], tirx.IntImm) else bool(told[1]),
        kept=kept if kept > 0 else given.shape[axis],
    )


def _statements(sort: _Sort, threads: int) -> Iterator[Statement]:
    given, length, inner, rows = sort.given.name, sort.length, sort.inner, sort.rows
    runs = blocks_of(length, threads)
    yield launch("sort_runs", (given, "order"), length, inner, runs, product((rows, runs)))
    rounds = fold("floordiv", fold("add", fold("ceil_log2", runs), 1), 2)
    if rounds != 0:
        yield Loop("merge_round", 0, rounds, tuple(_merges(sort, threads)))
    blocks = blocks_of(product((rows, sort.kept)), threads)
    for name, tensor in _written(sort):
        tensors = (given, "order", tensor.name)
        yield launch(name, tensors, length, inner, rows, sort.kept, blocks)


def _merges(sort: _Sort, threads: int) -> Iterator[Launch]:
    """One round: runs of `width` from the first workspace to the second, twice as wide ones back.

    What is as wide as the row already is copied.
    """
    blocks = blocks_of(product(sort.given.shape), threads)
    for step, spaces in enumerate((("order", "merged"), ("merged", "order"))):
        grown = ("shift_left", threads << step, ("mul", 2, "merge_round"))
        width = ("min", grown, sort.length)
        steps = ("add", ("ceil_log2", width), 1)
        numbers = (sort.length, sort.inner, sort.rows, width, steps, blocks)
        yield launch("merge_runs", (sort.given.name, *spaces), *numbers)
