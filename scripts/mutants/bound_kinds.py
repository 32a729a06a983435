"""Mistakes in the extent of work: bounds, guards, starts of sums, tails."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from scripts.mutants.site import Edit, PlanSite, edit
from scripts.mutants.syntax import Expression, KernelText, Statement
from tapml_targets.expression import Expression as Extent
from tapml_targets.library import Launch, OperatorProgram
from tapml_targets.library import Statement as PlanStatement


def bound_off_by_one(kernel: KernelText) -> Iterator[Edit]:
    """A comparison of an ``if`` lets one too many or one too few through, a loop one too many."""
    for statement in kernel.statements():
        if statement.kind not in ("if", "for") or statement.value is None:
            continue
        for part in statement.value.walk():
            if part.kind != "binary" or part.text not in ("<", "<=", ">", ">="):
                continue
            bound = part.children[0 if part.children[0].is_literal else 1]
            rules = (("bound + 1", "+ 1"), ("bound - 1", "- 1"))
            for rule, step in rules if statement.kind == "if" else rules[:1]:
                yield edit(kernel, rule, bound, f"({kernel.text(bound)} {step})")


def dropped_guard(kernel: KernelText) -> Iterator[Edit]:
    """A guarded statement always runs."""
    for statement in kernel.statements():
        if statement.kind == "if" and statement.value is not None:
            yield edit(kernel, "always", statement.value, kernel.words.always)


def reduction_start(kernel: KernelText) -> Iterator[Edit]:
    """A sum or a maximum starts from a wrong value, from none, or lacks a term."""
    yield from _terms(kernel)
    added = {_base(s.target) for s in kernel.statements() if accumulates(kernel, s)}
    for statement in kernel.statements():
        target, value = statement.target, statement.value
        if statement.kind == "for":
            if statement.first is not None and _adds_up(kernel, statement):
                first = kernel.text(statement.first)
                yield edit(kernel, "second term", statement.first, f"({first} + 1)")
        elif target is not None and value is not None and _base(target) in added:
            if not (value.is_float and value.is_literal):
                continue
            start = kernel.words.real("1.0" if kernel.text(value).startswith("0") else "0.0")
            yield edit(kernel, "another value", value, start)
            yield edit(kernel, "no value", statement, ";")


def _terms(kernel: KernelText) -> Iterator[Edit]:
    """A term of a sum that is written out is left out."""
    for statement in kernel.statements():
        for expression in statement.expressions():
            for part in expression.walk():
                if part.kind == "call" and part.text == "fma":
                    yield edit(kernel, "without a term", part, f"({kernel.text(part.children[2])})")


def skipped_loop_tail(kernel: KernelText) -> Iterator[Edit]:
    """A loop leaves its last round out."""
    for statement in kernel.statements():
        if statement.kind == "for" and statement.value is not None:
            bound = statement.value.children[1]
            yield edit(kernel, "last round", bound, f"({kernel.text(bound)} - 1)")


def skipped_blocks(program: OperatorProgram) -> Iterator[PlanSite]:
    """A launch leaves its last block out, or the one that is not full."""
    for position, statement in enumerate(program.statements):
        if not isinstance(statement, Launch):
            continue
        for axis, extent in enumerate(statement.grid):
            for rule, fewer in _fewer(extent):
                grid = list(statement.grid)
                grid[axis] = fewer
                launch = replace(statement, grid=(grid[0], grid[1], grid[2]))
                yield PlanSite(
                    "skipped tail",
                    rule,
                    f"grid of {statement.kernel}: {statement.grid}",
                    f"{launch.grid}",
                    replace(program, statements=_with(program, position, launch)),
                )


def accumulates(kernel: KernelText, statement: Statement) -> bool:
    """Whether a statement adds to what it stores to, or takes a maximum with it."""
    target, value = statement.target, statement.value
    if target is None or value is None or target.kind != "index" or not value.is_float:
        return False
    own = kernel.text(target)
    return any(part.kind == "index" and kernel.text(part) == own for part in value.walk())


def _adds_up(kernel: KernelText, loop: Statement) -> bool:
    return any(accumulates(kernel, inner) for inner in loop.walk())


def _base(target: Expression | None) -> str:
    return target.array if target is not None and target.kind == "index" else ""


def _fewer(extent: Extent) -> Iterator[tuple[str, Extent]]:
    """Smaller extents: one less, and rounded down where it is rounded up."""
    if isinstance(extent, int):
        if extent > 1:
            yield "last block", extent - 1
        return
    yield "last block", ("sub", extent, 1)
    match extent:
        case ("floordiv", ("add", amount, int(add)), int(block)) if add == block - 1:
            yield "block that is not full", ("floordiv", amount, block)


def _with(program: OperatorProgram, position: int, launch: Launch) -> tuple[PlanStatement, ...]:
    return (*program.statements[:position], launch, *program.statements[position + 1 :])
