"""Mistakes in memory accesses: indices, strides, stores, barriers."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.mutants.site import Edit, edit
from scripts.mutants.syntax import Expression, KernelText, Statement


def index_shift(kernel: KernelText) -> Iterator[Edit]:
    """The neighbour of the right element is read or written."""
    for _, index in _indices(kernel):
        subscript = index.children[1]
        for rule, step in (("one further", "+ 1"), ("one before", "- 1")):
            yield edit(kernel, rule, subscript, f"({kernel.text(subscript)}) {step}")


def transposed_load(kernel: KernelText) -> Iterator[Edit]:
    """Rows and columns exchanged: ``a * stride + b`` becomes ``b * stride + a``."""
    for statement, index in _indices(kernel):
        if index is statement.target or kernel.space(index) == "private":
            continue
        for part in index.children[1].walk():
            if part.kind != "binary" or part.text != "+":
                continue
            for scaled, other in (part.children, part.children[::-1]):
                row = _scaled(scaled)
                if row is None or other.is_literal:
                    continue
                factor = kernel.text(scaled.children[1])
                swapped = f"(({kernel.text(other)}) * {factor}) + ({kernel.text(row)})"
                yield edit(kernel, "row and column", part, swapped)


def wrong_stride(kernel: KernelText) -> Iterator[Edit]:
    """The stride of a dimension is off by one."""
    for _, index in _indices(kernel):
        for part in index.children[1].walk():
            if _scaled(part) is None:
                continue
            stride = part.children[1]
            for rule, step in (("one too many", "+ 1"), ("one too few", "- 1")):
                yield edit(kernel, rule, stride, f"({kernel.text(stride)} {step})")


def stale_output(kernel: KernelText) -> Iterator[Edit]:
    """Some elements of an output are never written."""
    for statement in kernel.statements():
        target = statement.target
        if target is None or target.kind != "index" or kernel.space(target) != "global":
            continue
        subscript = kernel.text(target.children[1])
        store = kernel.text(statement)
        for rule, condition in (
            ("the first element", f"({subscript}) != 0"),
            ("one element in seven", f"({subscript}) % 7 != 3"),
        ):
            replacement = f"if ({condition}) {{ {store} }}"
            yield edit(kernel, rule, statement, replacement)


def dropped_barrier(kernel: KernelText) -> Iterator[Edit]:
    """Threads no longer wait for each other."""
    for statement in kernel.statements():
        called = statement.value
        if (
            statement.kind == "call"
            and called is not None
            and called.text in ("barrier", "workgroupBarrier")
        ):
            yield edit(kernel, "no barrier", statement, ";")


def _indices(kernel: KernelText) -> Iterator[tuple[Statement, Expression]]:
    for statement in kernel.statements():
        for expression in statement.expressions():
            for part in expression.walk():
                if part.kind == "index":
                    yield statement, part


def _scaled(part: Expression) -> Expression | None:
    """``x`` of ``x * 128``; None for all else."""
    if part.kind == "binary" and part.text == "*" and part.children[1].is_literal:
        return part.children[0]
    return None
