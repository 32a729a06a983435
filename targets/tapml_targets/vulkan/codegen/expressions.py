"""Expressions of a device function as GLSL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import tvm

from tapml_targets.codegen.expression import call_name
from tapml_targets.errors import CompileError
from tapml_targets.vulkan.codegen.mathematics import TEXTS
from tapml_targets.vulkan.codegen.names import FEATURES, TYPES, Names, integer, number

_OPERATORS: Final = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "LShift": "<<", "RShift": ">>",
    "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "EQ": "==", "NE": "!=", "LT": "<",
    "LE": "<=", "GT": ">", "GE": ">=", "And": "&&", "Or": "||",
}  # fmt: skip
_CALLED_OPERATORS: Final = {
    "shift_left": "<<", "shift_right": ">>", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^",
}  # fmt: skip
# GLSL has no operators on the bits of a bool.
_OF_BOOL: Final = {"&": "&&", "|": "||", "^": "^^", "~": "!"}
_INTEGERS: Final = {
    "Mod": "tapml_truncated", "FloorMod": "tapml_floored", "FloorDiv": "tapml_quotient",
}  # fmt: skip
_SIGNED: Final = ("int", "int64_t")
# GLSL's name of each function of one float.
_FUNCTIONS: Final[Mapping[str, str]] = {
    "exp2": "exp2", "log2": "log2", "sqrt": "sqrt",
    "rsqrt": "inversesqrt", "sin": "sin", "cos": "cos", "tan": "tan",
    "fabs": "abs", "abs": "abs", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "round": "roundEven", "nearbyint": "roundEven",
    "rint": "roundEven", "pow": "pow", "fma": "fma",
    "fmin": "min", "fmax": "max",
}  # fmt: skip
_REINTERPRETED: Final = {
    ("float", "int"): "floatBitsToInt",
    ("float", "uint"): "floatBitsToUint",
    ("int", "float"): "intBitsToFloat",
    ("uint", "float"): "uintBitsToFloat",
    ("int", "uint"): "uint",
    ("uint", "int"): "int",
    ("double", "int64_t"): "doubleBitsToInt64",
    ("double", "uint64_t"): "doubleBitsToUint64",
    ("int64_t", "double"): "int64BitsToDouble",
    ("uint64_t", "double"): "uint64BitsToDouble",
    ("int64_t", "uint64_t"): "uint64_t",
    ("uint64_t", "int64_t"): "int64_t",
}

_EXCHANGES: Final = {
    "tvm_warp_activemask": "",
    "tvm_warp_shuffle": "subgroupShuffle",
    "tvm_warp_shuffle_up": "subgroupShuffleUp",
    "tvm_warp_shuffle_down": "subgroupShuffleDown",
}
# Shuffles of other widths than 32 bits are a feature of their own: such values go as words.
_PASSED: Final = {
    "float16_t": ("float({})", "float16_t({})"),
    "double": ("unpackDouble2x32({})", "packDouble2x32({})"),
    "int64_t": ("unpack32({})", "pack64({})"),
    "uint64_t": ("unpack32({})", "pack64({})"),
}


def _sign(sign: str, kind: str) -> str:
    return _OF_BOOL.get(sign, sign) if kind == "bool" else sign


class Expressions:
    """Prints expressions.

    Parameters
    ----------
    names
        Where new names come from.
    load
        Prints the element of a buffer at an index.
    statement
        Takes a statement that has to stand before the one that is being printed.
    wide
        Whether 64-bit integers stay; else 32 bits were proven to do.
    """

    def __init__(
        self,
        names: Names,
        load: Callable[[Any, str], str],
        statement: Callable[[str], None],
        *,
        wide: bool,
    ) -> None:
        self.names = names
        self.functions: dict[str, str] = {}
        self.features: set[str] = set()
        self._load = load
        self._statement = statement
        self._types = TYPES if wide else {**TYPES, "int64": "int"}
        self._variables: dict[Any, str] = {}

    def type_of(self, kind: str) -> str:
        """GLSL's name of a dtype.

        Raises
        ------
        CompileError
            If GLSL has none.
        """
        if kind not in self._types:
            raise CompileError(
                f"GLSL kernels do not compute with {kind}; keep the operator on the source"
            )
        found = self._types[kind]
        # Also a number that no variable holds needs what the device must have for it.
        if kind in FEATURES and found == TYPES[kind] and kind != "bool":
            self.features.add(FEATURES[kind])
        return found

    def name(self, variable: Any, text: str) -> None:
        """Note how a variable is printed."""
        self._variables[variable] = text

    def declare(self, variable: Any, value: str) -> str:
        """The declaration of a variable under a new name."""
        name = self.names.fresh(str(variable.name))
        self.name(variable, name)
        return f"{self.type_of(str(variable.ty))} {name} = {value};"

    def text(self, node: Any) -> str:  # noqa: PLR0911 - one return for each kind of node
        """One expression.

        Raises
        ------
        CompileError
            If a part of it has no counterpart in GLSL.
        """
        name, kind = type(node).__name__, str(node.ty)
        if name in _OPERATORS:
            return f"({self.text(node.a)} {_sign(_OPERATORS[name], kind)} {self.text(node.b)})"
        if name in _INTEGERS:
            return self._remainder(node, name)
        match name:
            case "IntImm":
                return integer(int(node.value), self.type_of(kind))
            case "FloatImm":
                return number(float(node.value), self.type_of(kind))
            case "Var":
                if node not in self._variables:
                    raise CompileError(f"the kernel uses {node.name!r}, which nothing defines")
                return self._variables[node]
            case "Min" | "Max":
                return f"{name.lower()}({self.text(node.a)}, {self.text(node.b)})"
            case "Not" | "BitwiseNot":
                return f"({'!' if name == 'Not' else _sign('~', kind)}{self.text(node.a)})"
            case "Cast":
                return self._cast(node, kind)
            case "Select":
                return self._choice(node.condition, node.true_value, node.false_value)
            case "Let":
                self._statement(self.declare(node.var, self.text(node.value)))
                return self.text(node.body)
            case "TensorLoad":
                (index,) = node.indices
                return self._load(node.source, self.index(index))
            case "Call":
                return self._call(node, kind)
        raise CompileError(f"GLSL has no counterpart of {name}: {str(node)[:120]}")

    def index(self, node: Any) -> str:
        """An expression as the index of an array, which has 32 bits."""
        text = self.text(node)
        return f"int({text})" if self.type_of(str(node.ty)) == "int64_t" else text

    def _choice(self, condition: Any, chosen: Any, other: Any) -> str:
        return f"({self.text(condition)} ? {self.text(chosen)} : {self.text(other)})"

    def _cast(self, node: Any, kind: str) -> str:
        target, value = self.type_of(kind), self.text(node.value)
        given = self.type_of(str(node.value.ty))
        if given == "int" and target in ("int64_t", "uint64_t"):
            self._use("tapml_widened")
            given, value = "int64_t", f"tapml_widened({value})"
        return value if given == target else f"{target}({value})"

    def _remainder(self, node: Any, name: str) -> str:
        kind = self.type_of(str(node.ty))
        a, b = self.text(node.a), self.text(node.b)
        if kind in ("uint", "uint64_t"):
            return f"({a} {'/' if name == 'FloorDiv' else '%'} {b})"
        if kind not in _SIGNED:
            raise CompileError(f"GLSL kernels have no {name} of {kind}: {str(node)[:120]}")
        self._use(f"tapml_remainders_{kind}")
        return f"{_INTEGERS[name]}_{kind}({a}, {b})"

    def _call(self, node: Any, kind: str) -> str:
        name, arguments = call_name(node), list(node.args)
        if name == "likely":
            return self.text(arguments[0])
        if name in ("call_pure_extern", "call_extern"):
            return self._function(str(arguments[0].value), arguments[1:], kind)
        if name == "if_then_else":
            return self._choice(*arguments)
        if name in _CALLED_OPERATORS:
            a, b = map(self.text, arguments)
            return f"({a} {_sign(_CALLED_OPERATORS[name], kind)} {b})"
        if name == "bitwise_not":
            return f"({_sign('~', kind)}{self.text(arguments[0])})"
        if name in _EXCHANGES:
            return self._exchanged(name, arguments, kind)
        if name == "reinterpret":
            return self._reinterpreted(arguments[0], kind)
        return self._function(name, arguments, kind)

    def _reinterpreted(self, value: Any, kind: str) -> str:
        source, target = self.type_of(str(value.ty)), self.type_of(kind)
        if source == target:
            return self.text(value)
        if (source, target) not in _REINTERPRETED:
            raise CompileError(f"GLSL kernels do not read the bits of {source} as {target}")
        return f"{_REINTERPRETED[source, target]}({self.text(value)})"

    def _exchanged(self, name: str, arguments: list[Any], kind: str) -> str:
        """A value of another lane: TVM gives mask, value, lane or distance, and two widths."""
        if not arguments:
            # All lanes take part: TVM exchanges values where no thread has left.
            return "0u"
        _, value, place, width, subgroup = arguments
        if int(width) != int(subgroup):
            raise CompileError(
                f"the kernel exchanges values among {int(width)} lanes of {int(subgroup)}, GLSL "
                "among all of them"
            )
        self.features.add("subgroups")
        lane = f"uint({self.text(place)})"
        if name == "tvm_warp_shuffle":
            # TVM numbers lanes through the block.
            lane = f"({lane} & {int(width) - 1}u)"
        target = self.type_of(kind)
        before, behind = _PASSED.get(target, ("{}", "{}"))
        passed = f"{_EXCHANGES[name]}({before.format(self.text(value))}, {lane})"
        return behind.format(passed)

    def _function(self, name: str, arguments: list[Any], kind: str) -> str:
        texts = [self.text(each) for each in arguments if isinstance(each, tvm.ir.Expr)]
        if name.startswith(("tapml_", "move_")):
            # Spelt out beforehand: its text is there, and may ask for what the device must have.
            for each in (kind, *(str(argument.ty) for argument in arguments)):
                if each in FEATURES and each in TYPES:
                    self.type_of(each)
            return f"{name}({', '.join(texts)})"
        plain = name if name in _FUNCTIONS else name.removesuffix("f")
        if plain == "popcount":
            return f"{self.type_of(kind)}(bitCount({texts[0]}))"
        if plain in ("abs", "fabs") and self.type_of(kind) in _SIGNED:
            return f"abs({texts[0]})"
        if plain not in _FUNCTIONS or not kind.startswith("float"):
            raise CompileError(f"GLSL has no function {name!r} of {kind}")
        called = _FUNCTIONS[plain]
        if kind == "float32":
            return f"{called}({', '.join(texts)})"
        # Half precision has fewer functions, and less accurate ones.
        result = self.type_of(kind)
        return f"{result}({called}({', '.join(f'float({text})' for text in texts)}))"

    def _use(self, function: str) -> None:
        self.functions[function] = TEXTS[function]
