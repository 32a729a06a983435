"""Mistakes in what is computed: operands, signs, constants, precision, unsafe forms, casts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from msgspec.structs import replace

from scripts.mutants.bound_kinds import accumulates
from scripts.mutants.site import Edit, PlanSite, edit
from scripts.mutants.syntax import Expression, KernelText, Statement
from scripts.mutants.words import BFLOAT16, FLOAT16
from tapml_targets.library import BufferArgument, Launch, OperatorProgram

# Shader languages have a function of tapml's that keeps NaN.
_EXPONENTIALS = frozenset({"exp", "tapml_exp"})
_TRUNCATED = {"float": "int", "half": "int", "int": "uchar", "long": "uchar"}


def operand_swap(kernel: KernelText) -> Iterator[Edit]:
    """Exchanged operands of non-commutative operations; exchanged branches of a condition."""
    for statement, part in _values(kernel):
        if statement.kind in ("if", "for"):
            continue
        ordered = part.kind == "binary" and part.text in ("-", "/", "<", "<=", ">", ">=")
        if ordered and (part.is_float or part.type == "bool"):
            first, second = (kernel.text(child) for child in part.children)
            swapped = f"({second}) {part.text} ({first})"
            yield edit(kernel, f"operands of {part.text}", part, swapped)
        elif part.kind == "call" and part.text == "pow":
            first, second = (kernel.text(child) for child in part.children)
            yield edit(kernel, "arguments of pow", part, f"pow({second}, {first})")
    for statement in kernel.statements():
        if statement.otherwise and statement.value is not None:
            condition = f"!({kernel.text(statement.value)})"
            yield edit(kernel, "branches", statement.value, condition)


def swapped_buffers(program: OperatorProgram) -> Iterator[PlanSite]:
    """Two inputs of one dtype exchanged in a launch."""
    inputs = {p.name: p.dtype for p in program.parameters if p.role == "input"}
    for position, statement in enumerate(program.statements):
        if not isinstance(statement, Launch):
            continue
        places = [
            (index, argument.name)
            for index, argument in enumerate(statement.arguments)
            if isinstance(argument, BufferArgument) and argument.name in inputs
        ]
        for (first, a), (second, b) in combinations(places, 2):
            if a == b or inputs[a] != inputs[b]:
                continue
            arguments = list(statement.arguments)
            arguments[first], arguments[second] = arguments[second], arguments[first]
            launch = replace(statement, arguments=tuple(arguments))
            statements = list(program.statements)
            statements[position] = launch
            yield PlanSite(
                "operand swap",
                "buffers of a launch",
                f"{statement.kernel}: {a}, {b}",
                f"{statement.kernel}: {b}, {a}",
                replace(program, statements=tuple(statements)),
            )


def sign(kernel: KernelText) -> Iterator[Edit]:
    """A sum becomes a difference, a stored value its negative."""
    for _, part in _values(kernel):
        if part.kind == "binary" and part.is_float and part.text in ("+", "-"):
            first, second = (kernel.text(child) for child in part.children)
            other = "-" if part.text == "+" else "+"
            yield edit(kernel, f"{part.text} to {other}", part, f"({first}) {other} ({second})")
        elif part.kind == "call" and part.text == "fma":
            first, *others = (kernel.text(child) for child in part.children)
            yield edit(kernel, "product", part, f"fma(-({first}), {', '.join(others)})")
        elif part.kind == "unary" and part.text == "-" and part.is_float:
            yield edit(kernel, "minus dropped", part, f"({kernel.text(part.children[0])})")
    for statement in _global_stores(kernel):
        if statement.value is not None and statement.value.is_float:
            yield edit(
                kernel, "stored value", statement.value, f"-({kernel.text(statement.value)})"
            )


def constant(kernel: KernelText) -> Iterator[Edit]:
    """A wrong number in a formula; bounds and starts of sums are separate kinds."""
    for statement, part in _values(kernel):
        if part.kind != "number" or statement.value is part or statement.kind in ("if", "for"):
            continue
        digits = kernel.text(part)
        if not part.is_float:
            yield edit(kernel, "one more", part, f"({digits} + 1)")
        elif float(digits.rstrip("fh")) == 0:
            yield edit(kernel, "one for zero", part, f"({digits} + 1)")
        else:
            yield edit(kernel, "twice", part, f"(2 * {digits})")
            yield edit(
                kernel, "one per cent more", part, f"({kernel.words.real('1.01')} * {digits})"
            )


def accumulator_precision(kernel: KernelText) -> Iterator[Edit]:
    """A sum keeps fewer bits of its mantissa from term to term."""
    for statement in kernel.statements():
        value = statement.value
        if value is None or not accumulates(kernel, statement):
            continue
        text = kernel.text(value)
        if value.type == "float":
            for rule, mask in (("as float16", FLOAT16), ("as bfloat16", BFLOAT16)):
                yield edit(kernel, rule, value, kernel.words.short_float(text, mask))
        elif value.type == "half":
            yield edit(kernel, "as bfloat16", value, kernel.words.short_half(text))


def unsafe_exponential(kernel: KernelText) -> Iterator[Edit]:
    """A mathematically equal formula that overflows or leaves the domain of a function."""
    for _, part in _values(kernel):
        if part.kind == "call" and part.is_float:
            yield from _unsafe_call(kernel, part)
        logistic = _logistic(part)
        if logistic is not None:
            x, one = kernel.text(logistic), kernel.words.real("1.0")
            yield edit(kernel, "exp(x) / (1 + exp(x))", part, f"(exp({x}) / ({one} + exp({x})))")
    for statement in kernel.statements():
        value = statement.value
        if (
            statement.kind == "store"
            and value is not None
            and _is_shared_maximum(kernel, statement)
        ):
            yield edit(kernel, "maximum not subtracted", value, kernel.words.real("0.0"))


def wrong_cast(kernel: KernelText) -> Iterator[Edit]:
    """A value goes through a type that does not hold it."""
    for statement in kernel.statements():
        for expression in statement.expressions():
            for part in expression.walk():
                if part is statement.target or part.type not in _TRUNCATED:
                    continue
                through = _TRUNCATED[part.type]
                text = kernel.text(part)
                narrowed = kernel.words.through(part.type, through, text)
                if part.kind == "index" and kernel.space(part) == "global":
                    yield edit(kernel, f"{part.type} through {through}", part, narrowed)
                elif part.kind == "call" and part.text == kernel.words.conversion(part.type):
                    inner = kernel.text(part.children[0])
                    narrowed = kernel.words.narrowed(part.text, inner)
                    yield edit(kernel, f"{part.type} through char", part, narrowed)


def _values(kernel: KernelText) -> Iterator[tuple[Statement, Expression]]:
    for statement in kernel.statements():
        for expression in statement.expressions():
            if expression is not statement.target:
                for part in expression.values():
                    yield statement, part


def _global_stores(kernel: KernelText) -> Iterator[Statement]:
    for statement in kernel.statements():
        target = statement.target
        if target is not None and target.kind == "index" and kernel.space(target) == "global":
            yield statement


def _unsafe_call(kernel: KernelText, call: Expression) -> Iterator[Edit]:
    """Unsafe forms of one function."""
    texts = [kernel.text(argument) for argument in call.children]
    argument = call.children[0]
    if call.text in _EXPONENTIALS and argument.kind == "binary" and argument.text == "-":
        first, second = (kernel.text(child) for child in argument.children)
        if not argument.children[0].is_literal:
            yield edit(kernel, "exp(a) / exp(b)", call, f"(exp({first}) / exp({second}))")
    if call.text == "tanh":
        one = kernel.words.real("1.0")
        twice = f"exp({kernel.words.real('2.0')} * ({texts[0]}))"
        yield edit(kernel, "tanh from exp", call, f"(({twice} - {one}) / ({twice} + {one}))")
    if call.text == "pow":
        yield edit(kernel, "pow from log", call, f"exp(({texts[1]}) * log({texts[0]}))")
    if call.text in kernel.words.native and call.type == "float":
        yield edit(kernel, f"native_{call.text}", call, f"native_{call.text}({texts[0]})")


def _logistic(part: Expression) -> Expression | None:
    """``x`` of ``1 / (1 + exp(0 - x))``; None for all else."""
    match part:
        case Expression(
            kind="binary",
            text="/",
            children=(
                Expression(is_literal=True),
                Expression(
                    text="+",
                    children=(
                        Expression(is_literal=True),
                        Expression(
                            text="exp" | "tapml_exp",
                            children=(
                                Expression(text="-", children=(Expression(is_literal=True), x)),
                            ),
                        ),
                    ),
                ),
            ),
        ):
            return x
    return None


def _is_shared_maximum(kernel: KernelText, statement: Statement) -> bool:
    """Whether one thread copies the result of a maximum reduction in shared memory."""
    target, value = statement.target, statement.value
    if target is None or value is None or value.kind != "index" or target.kind != "index":
        return False
    if kernel.space(target) != "local" or kernel.space(value) != "local":
        return False
    reduced = value.array
    return any(
        other.value is not None
        and other.value.text == "max"
        and other.target is not None
        and other.target.kind == "index"
        and other.target.array == reduced
        for other in kernel.statements()
    )
