"""sort, argsort and topk: kernels written by hand, chosen by what the operator means.

TVM's own sorts for GPUs use the third axis of the grid, which its WGSL keeps for itself. In their
form for processors they are one call of a library function, whose arguments say everything: the
axis, the direction, how many are kept.

All of them are a stable merge sort of places in a row. Runs of one workgroup's size are sorted by
counting; neighbouring runs are merged, two merges to a round, so that the result is always in the
same workspace; then what is asked for is written. Keys are the elements' bits, rearranged so that
they compare as unsigned integers: the order is total and the same everywhere. Equal elements keep
their order, both zeros are equal, and NaN is larger than any number, as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tvm import tirx

from tapml_targets.codegen.expression import call_name, fold
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product
from tapml_targets.library import Launch, Library, Loop, Parameter, Statement, Workspace
from tapml_targets.limits import Limits
from tapml_targets.webgpu.codegen.handwritten import (
    blocks_of,
    handwritten_library,
    kernel_text,
    launch,
    threads_for,
)
from tapml_targets.webgpu.codegen.storage import read_function, write_function

_MEANINGS: Final = {
    "tvm.contrib.sort.sort": "values",
    "tvm.contrib.sort.argsort": "indices",
    "tvm.contrib.sort.topk": "both",
}
_WORD: Final = 4
# How an element's bits become a key: of `bits`, an unsigned word. NaN has the largest.
_FLOAT_KEY: Final = """\
  let size = bits & {size}u;
  var key = select(bits | {sign}u, ~bits, (bits & {sign}u) != 0u);
  if (size == 0u) {{ key = {sign}u; }}
  if (size > {infinity}u) {{ key = 0xffffffffu; }}"""
_KEYS: Final = {
    "float32": _FLOAT_KEY.format(size="0x7fffffff", sign="0x80000000", infinity="0x7f800000"),
    "float16": "  bits = bits << 16u;\n"
    + _FLOAT_KEY.format(size="0x7fffffff", sign="0x80000000", infinity="0x7c000000"),
    "int32": "  let key = bits ^ 0x80000000u;",
    "uint32": "  let key = bits;",
}
_KEY_FUNCTION: Final = """\
fn key_of(row : u32, place : u32, length : u32, inner : u32) -> u32 {{
  let element = (row / inner) * length * inner + place * inner + row % inner;
  var bits = {bits};
{key}
  return {directed};
}}"""


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


def sort_library(source: OperatorSource, function: Any, limits: Limits) -> Library | None:
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
    name = source.identifier
    texts = {
        "sort_runs": kernel_text("sort_runs", threads, keys=_keys(sort)),
        "merge_runs": kernel_text("merge_runs", threads, keys=_keys(sort)),
        "write_sorted": _write_text(sort, threads),
    }
    statements = tuple(_statements(sort, name, threads))
    merges = any(isinstance(statement, Loop) for statement in statements)
    if not merges:
        del texts["merge_runs"]
    spaces = ("order", "merged") if merges else ("order",)
    nbytes = product((*sort.given.shape, _WORD))
    return handwritten_library(
        source,
        {f"{name}_{kernel}": text for kernel, text in texts.items()},
        statements,
        tuple(Workspace(space, nbytes) for space in spaces),
    )


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
    if len(written) != len(wanted) or given.dtype not in _KEYS:
        raise CompileError(
            f"{name} of {given.dtype} is not among what can be sorted here: "
            f"{', '.join(_KEYS)}; keep the operator on the source"
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


def _statements(sort: _Sort, name: str, threads: int) -> Iterator[Statement]:
    length, inner, rows = sort.length, sort.inner, sort.rows
    runs = blocks_of(length, threads)
    sizes = (length, inner, runs)
    yield launch(
        f"{name}_sort_runs", (sort.given.name, "order"), sizes, product((rows, runs)), threads
    )
    rounds = fold("floordiv", fold("add", fold("ceil_log2", runs), 1), 2)
    if rounds != 0:
        yield Loop("merge_round", 0, rounds, tuple(_merges(sort, name, threads)))
    written = [p.name for p in (sort.values, sort.indices) if p is not None]
    yield launch(
        f"{name}_write_sorted",
        (sort.given.name, "order", *written),
        (length, inner, rows, sort.kept),
        blocks_of(product((rows, sort.kept)), threads),
        threads,
    )


def _merges(sort: _Sort, name: str, threads: int) -> Iterator[Launch]:
    """One round: runs of `width` from the first workspace to the second, twice as wide ones back.

    What is as wide as the row already is copied.
    """
    elements = blocks_of(product(sort.given.shape), threads)
    for step, spaces in enumerate((("order", "merged"), ("merged", "order"))):
        grown = ("shift_left", threads << step, ("mul", 2, "merge_round"))
        width = ("min", grown, sort.length)
        sizes = (sort.length, sort.inner, sort.rows, width)
        yield launch(f"{name}_merge_runs", (sort.given.name, *spaces), sizes, elements, threads)


def _keys(sort: _Sort) -> str:
    """What the kernels compare, as a function of a row and a place in it."""
    half = sort.given.dtype == "float16"
    function = _KEY_FUNCTION.format(
        bits="read_given(i32(element))" if half else "given[element]",
        key=_KEYS[sort.given.dtype],
        directed="key" if sort.ascending else "~key",
    )
    return f"{read_function('given', 'uint16')}\n{function}" if half else function


def _write_text(sort: _Sort, threads: int) -> str:
    outputs, functions, writes, what = [], [], [], []
    half = sort.given.dtype == "float16"
    if sort.values is not None:
        what.append("their values")
        outputs.append(("values", "atomic<u32>" if half else "u32"))
        if half:
            functions += [read_function("given", "uint16"), write_function("values", "uint16")]
            writes.append("  write_values(i32(result), read_given(i32(source)));")
        else:
            writes.append("  values[result] = given[source];")
    if sort.indices is not None:
        what.append("their places")
        wide = sort.indices.dtype == "int64"
        outputs.append(("indices", "u32"))
        if wide:
            functions.append(write_function("indices", "int64"))
            writes.append("  write_indices(i32(result), i32(place));")
        else:
            writes.append("  indices[result] = place;")
    bindings = [
        f"@group(0) @binding({number}) var<storage, read_write> {name} : array<{kind}>;"
        for number, (name, kind) in enumerate(outputs, 2)
    ]
    return kernel_text(
        "write_sorted",
        threads,
        what=" and ".join(what),
        outputs="\n".join(bindings),
        sizes_binding=str(2 + len(outputs)),
        functions="\n".join(functions),
        writes="\n".join(writes),
    )
