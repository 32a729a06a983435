"""A device function, as TVM lowers it for Vulkan, printed as a GLSL compute shader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType

from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.narrow_types import BITS
from tapml_targets.codegen.value_proof import LOW
from tapml_targets.errors import CompileError
from tapml_targets.vulkan.codegen.elements import move_function, read_function, write_function
from tapml_targets.vulkan.codegen.expressions import Expressions
from tapml_targets.vulkan.codegen.names import (
    EXTENSIONS,
    FEATURES,
    STORED,
    Names,
    identifier,
)

GRID: Final = "tapml_grid_x"
_ARGUMENTS: Final = "arguments"
_BARRIERS: Final = {
    "shared": "barrier();",
    "global": "memoryBarrierBuffer(); barrier();",
    "warp": "subgroupBarrier();",
}
# What TVM calls the part of a sum that a thread holds.
_PASSED_ON: Final = "red_buf"
_FOLDED: Final = (
    "uint tapml_block = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;",
    f"if (tapml_block >= {_ARGUMENTS}.{GRID}) return;",
)


@dataclass(frozen=True)
class Kernel:
    """What is known of a kernel beside its function.

    Attributes
    ----------
    name
        Of the kernel.
    function
        The device PrimFunc, with the types of GLSL.
    scalars
        The dtype that the launch passes for each of its numbers.
    elements
        What the elements of its tensors are in memory, by pointer, where the function has them as
        words.
    modes
        How 64-bit elements are read, by pointer.
    moves
        Functions that copy 64-bit elements, with the pointers that they write and read.
    functions
        Text of the functions that the kernel calls.
    features
        What the device can store beside words.
    """

    name: str
    function: Any
    scalars: Sequence[str]
    elements: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    moves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    functions: str = ""
    features: frozenset[str] = frozenset()
    wide: bool = False


@dataclass(frozen=True)
class Printed:
    """A kernel's text, the function in it that is the kernel, and the features it needs."""

    text: str
    symbol: str
    features: tuple[str, ...]


def print_kernel(kernel: Kernel) -> Printed:
    """Print one kernel.

    Raises
    ------
    CompileError
        If a part of it has no counterpart in GLSL, which is named.
    """
    return _Printer(kernel).printed()


@dataclass
class _Tensor:
    """A tensor that the kernel is given: its name, what its elements are, how they are bound."""

    name: str
    element: str
    direct: bool
    written: bool = False
    calls: set[str] = field(default_factory=set)


class _Printer:
    """Prints statements; one object for one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._names = Names()
        self._expressions = Expressions(self._names, self._load, self._line, wide=kernel.wide)
        self._lines: list[str] = []
        self._depth = 1
        self._shared: list[str] = []
        self._tensors: dict[Any, _Tensor] = {}
        self._buffers: dict[Any, _Tensor | str] = {}
        self._block: dict[str, int] = {}
        self._threads: dict[Any, str] = {}
        self._folds = _folds(kernel.function)
        self._features: set[str] = set()

    def printed(self) -> Printed:
        """The whole text."""
        function = self._kernel.function
        pointers = [p for p in function.params if isinstance(p.ty, PointerType)]
        scalars = [p for p in function.params if not isinstance(p.ty, PointerType)]
        for pointer in pointers:
            self._tensors[pointer] = self._tensor(pointer)
        members = []
        for variable, kind in zip(scalars, self._kernel.scalars, strict=True):
            member = self._names.fresh(str(variable.name))
            members.append(f"{self._type(kind)} {member};")
            value, wanted = f"{_ARGUMENTS}.{member}", self._type(str(variable.ty))
            self._line(
                self._expressions.declare(
                    variable, value if wanted == self._type(kind) else f"{wanted}({value})"
                )
            )
        if self._folds:
            members.append(f"uint {GRID};")
            for line in _FOLDED:
                self._line(line)
        self._mark_moves()
        self._statement(function.body)
        symbol = identifier(self._kernel.name)
        self._features |= self._expressions.features
        text = "\n".join(self._module(symbol, members, pointers)) + "\n"
        return Printed(text, symbol, tuple(sorted(self._features)))

    def _module(
        self, symbol: str, members: Sequence[str], pointers: Sequence[Any]
    ) -> Iterator[str]:
        tensors = [self._tensors[pointer] for pointer in pointers]
        bindings = [self._binding(place, tensor) for place, tensor in enumerate(tensors)]
        extensions = {e for feature in self._features for e in EXTENSIONS.get(feature, ())}
        yield "#version 450"
        yield from (f"#extension {each} : require" for each in sorted(extensions))
        x, y, z = (self._block.get(axis, 1) for axis in "xyz")
        yield f"layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;"
        yield from bindings
        if members:
            yield f"layout(push_constant) uniform Arguments {{ {' '.join(members)} }} {_ARGUMENTS};"
        yield from self._shared
        for tensor in tensors:
            yield from self._access(tensor)
        by_name = {str(pointer.name): self._tensors[pointer].name for pointer in pointers}
        for name, (target, source) in self._kernel.moves.items():
            yield move_function(name, by_name[target], by_name[source])
        if self._kernel.functions:
            yield self._kernel.functions
        yield from self._expressions.functions.values()
        yield f"void {symbol}() {{"
        yield from self._lines
        yield "}"
        yield f"void main() {{ {symbol}(); }}"

    def _tensor(self, pointer: Any) -> _Tensor:
        name = str(pointer.name)
        element = self._kernel.elements.get(name, str(pointer.ty.element_type))
        feature = FEATURES.get(element, "")
        packed = name in self._kernel.elements
        direct = not packed or (element in BITS and feature in self._kernel.features)
        if direct and feature:
            self._features.add(feature)
        return _Tensor(self._names.fresh(name), element, direct)

    def _binding(self, place: int, tensor: _Tensor) -> str:
        if tensor.direct and tensor.element not in STORED:
            raise CompileError(
                f"{tensor.name!r} has elements of type {tensor.element}, which GLSL cannot store"
            )
        kind = STORED[tensor.element] if tensor.direct else "uint"
        access = "" if tensor.written else "readonly "
        return (
            f"layout(std430, set = 0, binding = {place}) {access}buffer Tensor{place} "
            f"{{ {kind} {tensor.name}[]; }};"
        )

    def _access(self, tensor: _Tensor) -> Iterator[str]:
        if tensor.direct:
            return
        pointer = next(p for p, found in self._tensors.items() if found is tensor)
        if "read" in tensor.calls:
            mode = self._kernel.modes.get(str(pointer.name), LOW)
            yield read_function(tensor.name, tensor.element, mode)
        if "write" in tensor.calls:
            yield write_function(tensor.name, tensor.element)

    def _mark_moves(self) -> None:
        for target, _ in self._kernel.moves.values():
            for pointer, tensor in self._tensors.items():
                if str(pointer.name) == target:
                    tensor.written = True

    def _type(self, kind: str) -> str:
        return self._expressions.type_of(kind)

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    def _load(self, buffer: Any, index: str) -> str:
        found = self._buffer(buffer)
        if isinstance(found, str):
            return f"{found}[{index}]"
        if not found.direct:
            found.calls.add("read")
            return f"read_{found.name}({index})"
        text = f"{found.name}[{index}]"
        kind = str(buffer.dtype)
        if STORED[found.element] == self._type(kind):
            return text
        return f"{self._type(kind)}({text})"

    def _buffer(self, buffer: Any) -> _Tensor | str:
        if buffer not in self._buffers:
            raise CompileError(f"the kernel uses {buffer.name!r}, which nothing declares")
        return self._buffers[buffer]

    def _statement(self, statement: Any) -> None:
        match type(statement).__name__:
            case "SeqStmt":
                for each in statement.seq:
                    self._statement(each)
            case "AttrStmt":
                if statement.attr_key == "thread_extent":
                    self._thread(statement)
                self._statement(statement.body)
            case "Bind":
                self._type(str(statement.var.ty))
                value = self._expressions.text(statement.value)
                self._line(self._expressions.declare(statement.var, value))
            case "For":
                self._loop(statement)
            case "While":
                self._line("while (true) {")
                self._depth += 1
                self._line(f"if (!{self._expressions.text(statement.condition)}) break;")
                self._inner(statement.body)
            case "IfThenElse":
                self._condition(statement)
            case "BufferStore":
                self._store(statement)
            case "Evaluate":
                self._evaluate(statement.value)
            case "DeclBuffer":
                self._declare(statement)
            case "AllocBuffer":
                self._allocate(statement.buffer)
            case kind:
                raise CompileError(f"GLSL has no counterpart of {kind}: {str(statement)[:200]}")

    def _inner(self, body: Any) -> None:
        """What stands in a brace that is open already, and the brace that closes it."""
        self._statement(body)
        self._depth -= 1
        self._line("}")

    def _thread(self, statement: Any) -> None:
        variable, tag = statement.node.var, str(statement.node.thread_tag)
        what, _, axis = tag.partition(".")
        if tag in self._threads:
            self._expressions.name(variable, self._threads[tag])
            return
        if what == "threadIdx":
            if not isinstance(statement.value, tirx.IntImm):
                raise CompileError(
                    f"the number of threads along {axis} is not fixed: {str(statement.value)[:80]}"
                )
            self._block[axis] = int(statement.value)
            place = f"gl_LocalInvocationID.{axis}"
        elif what == "blockIdx":
            place = "tapml_block" if self._folds and axis == "x" else f"gl_WorkGroupID.{axis}"
        else:
            raise CompileError(f"GLSL has no threads like {tag!r}")
        value = f"{self._type(str(variable.ty))}({place})"
        self._line(self._expressions.declare(variable, value))
        self._threads[tag] = self._expressions.text(variable)

    def _loop(self, loop: Any) -> None:
        kind = self._type(str(loop.loop_var.ty))
        start, extent = self._expressions.text(loop.min), self._expressions.text(loop.extent)
        name = self._names.fresh(str(loop.loop_var.name))
        self._expressions.name(loop.loop_var, name)
        end = extent if start in ("0", "0L") else f"{start} + {extent}"
        self._line(f"for ({kind} {name} = {start}; {name} < {end}; {name}++) {{")
        self._depth += 1
        self._inner(loop.body)

    def _condition(self, statement: Any) -> None:
        self._line(f"if ({self._expressions.text(statement.condition)}) {{")
        self._depth += 1
        self._statement(statement.then_case)
        self._depth -= 1
        if statement.else_case is not None:
            self._line("} else {")
            self._depth += 1
            self._statement(statement.else_case)
            self._depth -= 1
        self._line("}")

    def _store(self, store: Any) -> None:
        (index,) = store.indices
        place, value = self._expressions.index(index), self._expressions.text(store.value)
        found = self._buffer(store.buffer)
        if isinstance(found, str):
            self._line(f"{found}[{place}] = {value};")
            return
        found.written = True
        if not found.direct:
            found.calls.add("write")
            self._line(f"write_{found.name}({place}, {value});")
            return
        stored = STORED[found.element]
        same = stored == self._type(str(store.value.ty))
        self._line(f"{found.name}[{place}] = {value if same else f'{stored}({value})'};")

    def _evaluate(self, value: Any) -> None:
        if isinstance(value, tirx.IntImm):
            return
        if call_name(value) != "tvm_storage_sync":
            self._line(f"{self._expressions.text(value)};")
            return
        scope = str(value.args[0].value)
        if scope not in _BARRIERS:
            raise CompileError(f"GLSL kernels have no barrier for {scope!r}")
        if scope == "warp":
            self._features.add("subgroups")
        self._line(_BARRIERS[scope])

    def _declare(self, statement: Any) -> None:
        offset = statement.buffer.elem_offset
        if not isinstance(offset, tirx.IntImm) or int(offset):
            raise CompileError(f"{statement.buffer.name!r} starts inside its memory, at {offset}")
        data = statement.data
        if data in self._tensors:
            self._buffers[statement.buffer] = self._tensors[data]
            return
        raise CompileError(
            f"{statement.buffer.name!r} is a view of {data}, which is no tensor of the kernel's"
        )

    def _allocate(self, buffer: Any) -> None:
        scope = buffer.scope()
        elements = 1
        for extent in buffer.shape:
            elements *= int(extent)
        name = self._names.fresh(str(buffer.name))
        self._buffers[buffer] = name
        kind = self._type(str(buffer.dtype))
        if scope == "shared":
            self._shared.append(f"shared {kind} {name}[{elements}];")
        elif scope == "local" and str(buffer.name).startswith(_PASSED_ON) and elements == 1:
            # Lanes that have nothing to add pass on what they hold, which GLSL leaves undefined.
            self._line(f"{kind} {name}[1] = {kind}[1]({kind}(0));")
        elif scope == "local":
            self._line(f"{kind} {name}[{elements}];")
        else:
            raise CompileError(f"GLSL kernels have no memory of the kind {scope!r}")


def _folds(function: Any) -> bool:
    """Whether blocks that are too many along x may be numbered along z."""
    tags: set[str] = set()

    def look(statement: Any) -> None:
        if statement.attr_key == "thread_extent":
            tags.add(str(statement.node.thread_tag))

    tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, look))
    return "blockIdx.x" in tags and "blockIdx.z" not in tags
