"""Hypothesis strategies for valid Libraries."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tapml_targets.expression import Expression
from tapml_targets.library import (
    Bind,
    BufferArgument,
    CodeModule,
    Condition,
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Kernel,
    Launch,
    Library,
    Loop,
    ModuleKind,
    OperatorProgram,
    Parameter,
    Role,
    ScalarArgument,
    Statement,
    TensorArgument,
    Workspace,
)

NAMES = st.text("abcdefgh_./", min_size=1, max_size=8)
OPTIONS = st.lists(
    st.from_regex(r"[a-z][a-z0-9]{0,4}(-[a-z]{1,3})?", fullmatch=True), unique=True, max_size=3
)
KINDS: st.SearchStrategy[ModuleKind] = st.sampled_from(["source", "portable", "machine"])
INTEGERS = st.integers(-(2**63), 2**63 - 1)
DTYPES = st.sampled_from(["float32", "float16", "int64", "bool", "bfloat16", "uint4"])
FLOATS = st.sampled_from(["float16", "float32", "float64"])
SCALARS = st.sampled_from(["int32", "int64", "uint8", "float32", "bool"])
ROLES: tuple[Role, ...] = ("input", "output", "inout")
BINARY = ["add", "sub", "mul", "floordiv", "truncdiv", "min", "lt", "and", "shift_left"]


def expressions(symbols: list[str]) -> st.SearchStrategy[Expression]:
    """Expressions that read nothing but `symbols`."""
    leaves: st.SearchStrategy[Any] = INTEGERS
    if symbols:
        leaves = leaves | st.sampled_from(symbols)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(BINARY), inner, inner),
            st.tuples(st.just("select"), inner, inner, inner),
            st.tuples(st.just("not"), inner),
        ),
        max_leaves=6,
    )


@st.composite
def parameter_lists(draw: st.DrawFn) -> tuple[tuple[Parameter, ...], list[str]]:
    """Parameters and the symbols that their shapes give."""
    parameters = []
    symbols = draw(st.lists(NAMES, max_size=3, unique=True))
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    used: set[str] = set()
    for name in names:
        extents: st.SearchStrategy[Any] = st.sampled_from(symbols) if symbols else st.just(3)
        shape = draw(st.lists(extents, max_size=4))
        used.update(extent for extent in shape if isinstance(extent, str))
        role = draw(st.sampled_from(ROLES))
        parameters.append(Parameter(name, tuple(shape), draw(DTYPES), role))
    return tuple(parameters), sorted(used)


@st.composite
def statement_lists(
    draw: st.DrawFn, operands: list[str], tensors: list[str], symbols: list[str], depth: int
) -> tuple[Statement, ...]:
    """Statements of an operator whose memory is `operands`."""
    statements: list[Statement] = []
    known = list(symbols)
    for kind in draw(st.lists(st.sampled_from(["launch", "loop", "if", "bind"]), max_size=3)):
        inside = expressions(known)
        nested = kind in ("loop", "if")
        if kind == "launch" or (nested and depth == 0):
            options: list[st.SearchStrategy[Any]] = [
                st.builds(ScalarArgument, inside, SCALARS),
                st.builds(ScalarArgument, inside, FLOATS, inside),
            ]
            if operands:
                options.append(st.builds(BufferArgument, st.sampled_from(operands), inside))
            if tensors:
                options.append(st.builds(TensorArgument, st.sampled_from(tensors)))
            extents = st.tuples(inside, inside, inside)
            arguments = tuple(draw(st.lists(st.one_of(options), max_size=4)))
            shared = draw(st.just(0) | inside)
            statements.append(Launch("kernel", arguments, draw(extents), draw(extents), shared))
        elif kind == "loop":
            symbol = draw(NAMES)
            body = draw(statement_lists(operands, tensors, [*known, symbol], depth - 1))
            statements.append(Loop(symbol, draw(inside), draw(inside), body))
        elif kind == "if":
            then = draw(statement_lists(operands, tensors, known, depth - 1))
            otherwise = draw(statement_lists(operands, tensors, known, depth - 1))
            statements.append(Condition(draw(inside), then, otherwise))
        else:
            symbol = draw(NAMES)
            statements.append(Bind(symbol, draw(inside)))
            known.append(symbol)
    return tuple(statements)


@st.composite
def operators(draw: st.DrawFn, name: str) -> OperatorProgram:
    """An operator that launches the kernel called ``kernel``."""
    parameters, given = draw(parameter_lists())
    passed = draw(st.lists(NAMES.filter(lambda n: n not in given), max_size=2, unique=True))
    tensors = [parameter.name for parameter in parameters]
    names = draw(st.lists(NAMES.filter(lambda n: n not in tensors), max_size=2, unique=True))
    symbols = [*given, *passed]
    workspaces = tuple(Workspace(n, draw(expressions(symbols))) for n in names)
    operands = [*tensors, *names]
    statements = draw(statement_lists(operands, tensors, symbols, 2))
    return OperatorProgram(name, parameters, statements, workspaces, tuple(passed))


@st.composite
def entries(draw: st.DrawFn, name: str, program: OperatorProgram) -> EntryProgram:
    """An entry that calls `program` on values of its own."""
    parameters, given = draw(parameter_lists())
    taken = [parameter.name for parameter in parameters]
    names = draw(
        st.lists(NAMES.filter(lambda n: n not in taken), min_size=1, max_size=2, unique=True)
    )
    inside = expressions(given)
    storages = tuple(EntryStorage(n, draw(inside)) for n in names)
    values = tuple(
        EntryValue(
            f"v{index}",
            draw(st.sampled_from([*taken, *names])),
            draw(inside),
            tuple(draw(st.lists(inside, max_size=3))),
            draw(DTYPES),
        )
        for index in range(len(program.parameters))
    )
    call = EntryCall(
        program.name,
        tuple(value.name for value in values),
        tuple((symbol, draw(inside)) for symbol in program.symbols),
    )
    return EntryProgram(name, parameters, storages, values, (call,))


@st.composite
def libraries(draw: st.DrawFn) -> Library:
    """A Library that passes its checks."""
    modules = tuple(
        CodeModule(
            draw(NAMES), code, tuple(sorted(draw(OPTIONS))), draw(KINDS), draw(st.just("") | NAMES)
        )
        for code in draw(st.lists(st.binary(max_size=40), min_size=1))
    )
    kernel = Kernel(
        "kernel",
        "kernel_1",
        draw(st.integers(0, len(modules) - 1)),
        draw(st.integers(0, 1024)),
        draw(st.integers(0, 1 << 20)),
        ("dynamic_shared_memory", *draw(st.lists(NAMES, max_size=2))),
        draw(st.integers(0, 128)),
    )
    names = draw(st.lists(NAMES, max_size=2, unique=True))
    programs = {name: draw(operators(name)) for name in names}
    sequences = {}
    if names:
        name = draw(NAMES.filter(lambda n: n not in names))
        sequences[name] = draw(entries(name, programs[names[0]]))
    metadata = draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
    return Library(draw(NAMES), modules, {"kernel": kernel}, programs, sequences, metadata)
