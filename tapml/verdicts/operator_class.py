"""Classifies an operator's arithmetic from its function; the class selects the limits.

A copy must be exact, an addition rounds once, a sum of six thousand terms many times. The class is
read from the structure of the function (what is stored, from what, through which arithmetic), not
from names, and per output. The JSON is read without TVM, so that a replay on a base install
classifies as the host did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args

from numpy.typing import NDArray

from tapml.plan.graph_plan import Operator
from tapml.verdicts.function_tree import FunctionTree, Store
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, bind_shape, evaluate
from tapml_targets.float_formats import float_format
from tapml_targets.library import Parameter

OperatorClass: TypeAlias = Literal[
    "exact",
    "elementwise",
    "transcendental",
    "reduction",
    "product",
    "normalisation",
    "softmax",
    "scan",
    "rounded",
    "discrete",
    "unclassified",
]
"""
``exact``
    Data is moved, chosen, negated, compared: exact in any arithmetic.
``elementwise``
    Additions, products, quotients, square roots, casts, each rounded once.
``transcendental``
    Functions that a device may approximate by a few units: exp, tanh, sin, pow.
``reduction``, ``product``
    Sums; sums of products of two tensors.
``normalisation``, ``softmax``
    What is divided by (the root of) a sum; by a sum of exponentials.
``scan``
    Sums that build on each other, sorts.
``rounded``
    Computed throughout in a wider dtype than the output's, into which it is rounded once.
``discrete``
    Integers, indices, codes, predicates; they have no limits.
``unclassified``
    The function calls something that cannot be looked into.
"""

CLASSES: Final[tuple[OperatorClass, ...]] = get_args(OperatorClass)

# Correctly rounded by IEEE 754, or within 3 units by the OpenCL specification (section 7.4).
_ROUNDED_CALLS: Final = frozenset({"sqrt", "rsqrt"})
_EXACT_CALLS: Final = frozenset(
    {"fabs", "abs", "floor", "ceil", "trunc", "round", "nearbyint", "isnan", "isinf", "isfinite"}
    | {"if_then_else", "likely", "copysign", "max", "min", "fmax", "fmin", "reinterpret"}
)
_TRANSCENDENTAL_CALLS: Final = frozenset(
    {"exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "pow", "erf", "sigmoid"}
    | {"sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh"}
    | {"atanh", "atan2", "hypot", "ldexp"}
)
_ARITHMETIC: Final = frozenset(
    {"prim.Add", "prim.Sub", "prim.Mul", "prim.Div", "prim.Mod", "prim.FloorDiv", "prim.FloorMod"}
)
_EXTREMES: Final = frozenset({"prim.Max", "prim.Min"})


@dataclass(frozen=True)
class OutputTraits:
    """How one output of an operator is computed.

    Attributes
    ----------
    operator_class
        See :data:`OperatorClass`.
    arithmetic
        The narrowest dtype of any intermediate result; empty if nothing is computed or it is
        unknown.
    terms
        Length of the longest sum accumulated in `arithmetic`, over shape symbols; None if unknown.
        Sums accumulated in a wider dtype are exact by comparison and not counted.
    saturates
        Whether a function on the way saturates (tanh, erf, exp), so that perturbed inputs do not
        show what is lost after it.
    """

    operator_class: OperatorClass
    arithmetic: str = ""
    terms: Expression | None = 1
    saturates: bool = False


def traits_of(operator: Operator) -> tuple[OutputTraits, ...]:
    """The traits of each written parameter, in order."""
    # Only sorts and scans have a separate function per kind of platform.
    return _traits(operator.function, operator.parameters, bool(operator.variants))


def subtracts(operator: Operator) -> bool:
    """Whether an output depends on a floating-point difference or quotient."""
    tree = FunctionTree.parse(operator.function)
    return tree is None or any(
        tree.float_dtypes(store.value, {"prim.Sub", "prim.Div"}) for store in tree.stores
    )


def terms_of(
    traits: Sequence[OutputTraits], operator: Operator, inputs: Sequence[NDArray[Any]],
    symbols: Mapping[str, int],
) -> int | None:  # fmt: skip
    """Number of terms of the longest sum over all outputs; None if unknown.

    Parameters
    ----------
    traits
        Of the operator's outputs.
    inputs
        Raw inputs; their shapes bind the symbols of the operator's parameters.
    symbols
        Integers passed along with the tensors.
    """
    known = dict(symbols)
    longest = 1
    try:
        for parameter, raw in zip(operator.read, inputs, strict=True):
            bind_shape(parameter.shape, raw.shape, known, parameter.name)
        for output in traits:
            if output.operator_class == "discrete":
                continue
            if output.terms is None:
                return None
            longest = max(longest, evaluate(output.terms, known))
    except InputError:
        # A symbol that only an output's shape has.
        return None
    return longest


def checked_class(data: object) -> tuple[OperatorClass, str]:
    """Validate class and arithmetic of an output from an untrusted file.

    Raises
    ------
    InputError
        If `data` is not a pair of a class and a floating-point dtype or "".
    """
    if isinstance(data, list) and len(data) == 2 and data[0] in CLASSES:
        name, arithmetic = data
        if arithmetic == "" or (isinstance(arithmetic, str) and lookup(arithmetic).is_float):
            return name, arithmetic
    raise InputError(f"expected an operator class and the dtype it computes in, got {data!r:.200}")


@lru_cache(maxsize=1024)
def _traits(
    function: str, parameters: tuple[Parameter, ...], is_scan: bool
) -> tuple[OutputTraits, ...]:
    tree = FunctionTree.parse(function)
    found = []
    for position, parameter in enumerate(parameters):
        if parameter.role == "input":
            continue
        if not lookup(parameter.dtype).is_float:
            arithmetic = _discrete_arithmetic(tree, parameters, position)
            found.append(OutputTraits("discrete", arithmetic))
        elif tree is None or len(tree.parameters) < len(parameters):
            found.append(OutputTraits("unclassified", terms=None))
        elif is_scan:
            found.append(OutputTraits("scan", parameter.dtype, None))
        else:
            found.append(_output_traits(tree, tree.parameters[position], parameter.dtype))
    return tuple(found)


def _discrete_arithmetic(
    tree: FunctionTree | None, parameters: Sequence[Parameter], position: int
) -> str:
    """The narrowest dtype of what is computed before it becomes an integer; empty if nothing is.

    Comparing or rounding inputs gives the same on every device.
    """
    floats = [p.dtype for p in parameters if p.role != "output" and lookup(p.dtype).is_float]
    narrowest = min(floats, key=_bits, default="")
    if tree is None or len(tree.parameters) < len(parameters) or not floats:
        return narrowest
    stores = tree.stores_behind(tree.parameters[position])
    if stores is None or any(_unknown(tree, store) for store in stores):
        return narrowest
    computed = [store for store in stores if not _is_exact(tree, store)]
    return _narrowest(tree, computed, tree.parameters[position])


def _output_traits(tree: FunctionTree, buffer: int, dtype: str) -> OutputTraits:
    stores = tree.stores_behind(buffer)
    if stores is None:
        return OutputTraits("unclassified", terms=None)
    # An operation that is not known here may be anything.
    if any(_unknown(tree, store) for store in stores):
        return OutputTraits("unclassified", terms=None)
    arithmetic = _narrowest(tree, stores, buffer)
    operator_class = _class_of(tree, stores)
    terms = _longest(tree, stores, arithmetic)
    if arithmetic and _bits(arithmetic) > _bits(dtype) and operator_class != "exact":
        return OutputTraits("rounded", arithmetic, 1)
    calls = {call for store in stores for call in tree.calls(store.value)}
    return OutputTraits(operator_class, arithmetic, terms, bool(calls & _TRANSCENDENTAL_CALLS))


def _class_of(tree: FunctionTree, stores: Sequence[Store]) -> OperatorClass:
    """The least exact class that any of the stores belongs to."""
    if any(store.carries and not _is_exact(tree, store) for store in stores):
        return "scan"
    sums = [store for store in stores if store.accumulates and not _is_extreme(tree, store)]
    calls = {call for store in stores for call in tree.calls(store.value)}
    if sums:
        divides = any("prim.Div" in tree.operations(store.value) for store in stores)
        if divides and any(_adds_exponentials(tree, store) for store in sums):
            return "softmax"
        if calls & {"sqrt", "rsqrt"} or "pow" in calls:
            return "normalisation"
        if any(_adds_products(tree, store) for store in sums):
            return "product"
        return "reduction"
    if calls & _TRANSCENDENTAL_CALLS:
        return "transcendental"
    return "exact" if all(_is_exact(tree, store) for store in stores) else "elementwise"


def _unknown(tree: FunctionTree, store: Store) -> bool:
    known = _ROUNDED_CALLS | _EXACT_CALLS | _TRANSCENDENTAL_CALLS
    return bool(tree.calls(store.value) - known) or tree.has_unknown(store.value)


def _is_exact(tree: FunctionTree, store: Store) -> bool:
    """Whether the stored value is a loaded one or its negative."""
    if tree.calls(store.value) - _EXACT_CALLS or tree.rounding_casts(store.value):
        return False
    return not tree.float_dtypes(store.value, _ARITHMETIC)


def _is_extreme(tree: FunctionTree, store: Store) -> bool:
    return tree.kind(tree.without_nan(store.value)) in _EXTREMES


def _adds_exponentials(tree: FunctionTree, store: Store) -> bool:
    behind = tree.stores_behind(store.buffer) or ()
    return any({"exp", "exp2"} & tree.calls(other.value) for other in behind)


def _adds_products(tree: FunctionTree, store: Store) -> bool:
    """Whether a sum's term is the product of two different tensors."""
    return any(left != right and left and right for left, right in tree.factors(store))


def _narrowest(tree: FunctionTree, stores: Sequence[Store], output: int) -> str:
    """The narrowest dtype of any arithmetic and of any buffer that holds a computed value."""
    found: set[str] = set()
    for store in stores:
        computed = tree.float_dtypes(store.value, _ARITHMETIC | {"ir.Call"})
        found |= computed | tree.passed_dtypes(store.value)
        kept = tree.buffer_dtype(store.buffer)
        if store.buffer != output and not _is_exact(tree, store) and lookup(kept).is_float:
            found.add(kept)
    return min(found, key=_bits, default="")


def _longest(tree: FunctionTree, stores: Sequence[Store], arithmetic: str) -> Expression | None:
    longest: Expression = 1
    for store in stores:
        if store.carries:
            return None
        if not store.accumulates or _is_extreme(tree, store):
            continue
        if _bits(tree.buffer_dtype(store.buffer)) > _bits(arithmetic):
            continue
        extent = tree.reduced_extent(store)
        if extent is None:
            return None
        longest = extent if longest == 1 else ("max", longest, extent)
    return longest


def _bits(dtype: str) -> int:
    """Mantissa bits of a floating-point dtype; other dtypes count as exact."""
    return float_format(dtype).mantissa_bits if dtype and lookup(dtype).is_float else 64
