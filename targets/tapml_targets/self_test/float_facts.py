"""Facts about the arithmetic of a floating-point dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.library import Library
from tapml_targets.platforms import optional_part
from tapml_targets.self_test.facts import Fact, number
from tapml_targets.self_test.operands import EDGES, Operands, errors_in_ulp, operands_of
from tapml_targets.self_test.place import Place

_Answers = dict[str, NDArray[Any]]
_CORRECTLY_ROUNDED: Final = 0.5
_EXACT: Final[dict[str, Callable[..., Any]]] = {
    "divide": lambda a, b: a / b,
    "square_root": lambda a, _: np.sqrt(a),
    "exp": lambda a, _: np.exp(a),
    "log": lambda a, _: np.log(a),
    "tanh": lambda a, _: np.tanh(a),
}


def float_facts(place: Place, library: Library, dtype: str) -> list[Fact]:
    """Contraction, denormals, NaN and -0, edges of functions, and accuracy of a dtype."""
    operands = operands_of(dtype)
    answers = operands.ask(place, library)
    with np.errstate(all="ignore"):
        facts = [
            *_contraction(operands, answers),
            *_denormals(operands, answers),
            _nan(operands, answers),
            _negative_zero(operands, answers),
        ]
        if "tanh" in answers:
            facts += [_minimum_of_nan(operands, answers), *_edges(operands, answers)]
        rules = optional_part(library.target, "accuracy")
        facts += _accuracy(operands, answers, rules) if rules else []
    return facts


def _contraction(operands: Operands, answers: _Answers) -> list[Fact]:
    """Whether a * b + c rounds once or twice, by default and where contraction is forbidden."""
    dtype, group = operands.dtype, operands.groups["multiply_add"]
    a, b, c = (x[group].astype(np.float64) for x in (operands.a, operands.b, operands.c))
    # A product of two numbers of 24 or 11 bits is exact in float64; float64 has no exact sums.
    once = np.zeros_like(a) if dtype == "float64" else a * b + c
    facts = []
    if "multiply_add" in answers:
        way = _way(answers["multiply_add"][group], once)
        facts.append(
            Fact(
                f"{dtype}_multiply_add", way, "", "separate", None if way == "fused" else
                way == "separate", "measured",
                {
                    "fused": f"a * b + c is contracted to one rounding in {dtype}: results differ "
                    "from a reference that rounds twice by up to an ulp of the product",
                    "separate": f"a * b + c rounds the product and the sum in {dtype}",
                }.get(way, f"a * b + c in {dtype} is neither rounded once nor twice"),
                trait=f"contracts {dtype} multiply-add" if way == "fused" else "",
            )
        )  # fmt: skip
    apart = _way(answers["multiply_add_apart"][group], once)
    facts.append(
        Fact(
            f"{dtype}_multiply_add_apart", apart, "", "separate", apart == "separate", "measured",
            f"where contraction is forbidden, a * b + c in {dtype} rounds twice"
            if apart == "separate"
            else f"a * b + c in {dtype} is {apart} although contraction was forbidden: kernels "
            "that rely on two roundings (compensated sums) lose what they gain",
            trait="" if apart == "separate" else f"contracts {dtype} multiply-add where forbidden",
        )
    )  # fmt: skip
    if "fused" in answers:
        fused = _way(answers["fused"][group], once)
        facts.append(
            Fact(
                f"{dtype}_fma", fused, "", "fused", fused == "fused", "measured",
                f"fma() rounds once in {dtype}" if fused == "fused" else
                f"fma() is {fused} in {dtype}: it computes less precisely than it promises",
            )
        )  # fmt: skip
    return facts


def _way(got: NDArray[Any], once: NDArray[np.float64]) -> str:
    """How sums were rounded that are `once` if rounded once and zero if rounded twice.

    If `once` is all zeros, the exact sums are not known.
    """
    telling = once != 0
    found = got.astype(np.float64)
    if not telling.any():
        return "fused" if found.any() else "separate"
    if np.array_equal(found[telling], once[telling]):
        return "fused"
    if not found.any():
        return "separate"
    either = (found == once) | (found == 0)
    return "mixed" if either.all() else "neither"


def _denormals(operands: Operands, answers: _Answers) -> list[Fact]:
    dtype = operands.dtype
    facts = []
    for group, what, meaning in (
        ("denormal_inputs", "inputs", "denormal {} numbers that a kernel reads count as zero"),
        ("denormal_results", "results", "{} results below the smallest normal number become zero"),
    ):
        where = operands.groups[group]
        exact = operands.a[where] * operands.b[where]
        got = answers["multiply"][where]
        state = "kept" if np.array_equal(got, exact) else "wrong" if got.any() else "flushed"
        facts.append(
            Fact(
                f"{dtype}_denormal_{what}", state, "", "kept", state == "kept", "measured",
                f"denormal {what} are kept in {dtype}" if state == "kept" else
                meaning.format(dtype) if state == "flushed" else
                f"denormal {what} of {dtype} are neither kept nor zero",
                trait="" if state == "kept" else f"flushes {dtype} denormals",
            )
        )  # fmt: skip
    where = operands.groups["denormal_inputs"]
    same = np.array_equal(answers["copy"][where], operands.a[where])
    facts.append(
        Fact(
            f"{dtype}_denormal_copies", "kept" if same else "changed", "", "kept", same, "measured",
            f"a copy of {dtype} numbers keeps denormals" if same else
            f"even a copy of {dtype} numbers loses denormals",
            trait="" if same else f"flushes {dtype} denormals",
        )
    )  # fmt: skip
    return facts


def _nan(operands: Operands, answers: _Answers) -> Fact:
    dtype, at = operands.dtype, operands.groups["nan"].start
    rows = (
        "copy", "add", "subtract", "multiply", "divide", "square_root", "multiply_add", "exp",
        "tanh", "select",
    )  # fmt: skip
    lost: list[str] = [row for row in rows if row in answers and not np.isnan(answers[row][at])]
    if answers["is_nan"][at] != 1:
        lost.append("x != x")
    return _survival(f"{dtype}_nan", "a NaN", lost, f"loses {dtype} NaNs")


def _negative_zero(operands: Operands, answers: _Answers) -> Fact:
    dtype, at = operands.dtype, operands.groups["zero"].start
    lost = [
        row
        for row in ("copy", "add", "square_root", "tanh", "lesser")
        if row in answers and not (answers[row][at] == 0 and np.signbit(answers[row][at]))
    ]
    return _survival(f"{dtype}_negative_zero", "-0", lost, f"loses {dtype} -0")


def _survival(name: str, what: str, lost: Sequence[str], trait: str) -> Fact:
    words = ", ".join(row.replace("_", " ") for row in lost)
    dtype = name.partition("_")[0]
    return Fact(
        name, f"lost in {words}" if lost else "survives", "", "survives", not lost, "measured",
        f"{what} comes through copies, sums, functions and selections" if not lost else
        f"{what} of {dtype} is lost in {words}: a model that computes one continues with a number",
        grave=what == "a NaN",
        trait=trait if lost else "",
    )  # fmt: skip


def _minimum_of_nan(operands: Operands, answers: _Answers) -> Fact:
    at = operands.groups["nan"].start
    way = "NaN" if np.isnan(answers["minimum"][at]) else "the number"
    return Fact(
        f"{operands.dtype}_minimum_of_nan", way, "", "the number", None, "measured",
        f"the minimum of a NaN and a number is {way}: a clamp "
        + ("keeps a NaN" if way == "NaN" else "hides a NaN"),
    )  # fmt: skip


def _edges(operands: Operands, answers: _Answers) -> list[Fact]:
    dtype, group = operands.dtype, operands.groups["edges"]
    wide = operands.a[group].astype(np.float64)
    broken = [
        f"{name}({x:g}) = {got:g}"
        for name in ("exp", "log", "tanh")
        for x, got, want in zip(
            EDGES, answers[name][group], _EXACT[name](wide, 0).astype(dtype), strict=True
        )
        if not _agree(float(got), float(want), np.finfo(dtype))
    ]
    return [
        _tanh_of_45(dtype, float(answers["tanh"][group][EDGES.index(45.0)])),
        Fact(
            f"{dtype}_function_edges", ", ".join(broken[:6]) or "right", "", "right", not broken,
            "measured",
            f"exp, log and tanh are right in {dtype} at 0, at infinities and where they overflow"
            if not broken else
            f"functions go wrong at their edges in {dtype}: masked softmaxes and activations "
            "get NaNs or infinities",
            grave=True,
            trait=f"{dtype} functions wrong at their edges" if broken else "",
        ),
    ]  # fmt: skip


def _tanh_of_45(dtype: str, tanh: float) -> Fact:
    """A GELU multiplies its argument by 1 + tanh, so an error of tanh near 1 shows in its tail."""
    name, near = f"{dtype}_tanh_of_45", abs(tanh - 1) <= 8 * float(np.finfo(dtype).eps)
    if tanh == 1:
        meaning, trait = f"tanh(45) is 1 in {dtype}: a GELU is exact far from zero", ""
    elif near:
        meaning = (
            f"tanh(45) is 1 - {1 - tanh:.2g} in {dtype}: a GELU of large negative arguments is "
            f"their {0.5 * (1 - tanh):.1g}-fold where it should be 0"
        )
        trait = f"{dtype} tanh never reaches 1"
    else:
        meaning = (
            f"tanh(45) is {tanh:g} in {dtype}: a quotient of exponentials overflows, and a GELU of "
            "large arguments with it"
        )
        trait = f"{dtype} tanh breaks for large arguments"
    return Fact(
        name, number(tanh), "", 1.0, tanh == 1, "measured", meaning, grave=not near, trait=trait
    )


def _agree(got: float, want: float, info: Any) -> bool:
    """Equal to some digits; NaN with NaN; near underflow and overflow either way."""
    if np.isnan(want) or np.isnan(got):
        return bool(np.isnan(want) and np.isnan(got))
    if np.isinf(want) or np.isinf(got):
        return got == want
    return abs(got - want) <= 0.01 * abs(want) + float(info.smallest_normal)


def _accuracy(operands: Operands, answers: _Answers, rules: ModuleType) -> list[Fact]:
    dtype, group = operands.dtype, operands.groups["accuracy"]
    a, b = (x[group].astype(np.float64) for x in (operands.a, operands.b))
    facts = []
    for name, function in _EXACT.items():
        # numpy rounds float64 correctly, but its functions are no more accurate than a device's.
        if name not in answers or (dtype == "float64" and name not in ("divide", "square_root")):
            continue
        errors = errors_in_ulp(answers[name][group], np.asarray(function(a, b), np.float64))
        bounds = np.broadcast_to(rules.allowed_ulp(name, dtype, a), errors.shape)
        within = bool(np.all(errors <= bounds))
        # The bound may depend on the operand: exceeding it is worse than a larger error.
        at = int(np.argmax(errors if within else errors / bounds))
        worst, allowed = float(errors[at]), float(bounds[at])
        basic = name in ("divide", "square_root")
        rounded = worst <= _CORRECTLY_ROUNDED
        word = name.replace("_", " ")
        facts.append(
            Fact(
                f"{dtype}_{name}_error", number(round(worst, 3)), "ulp",
                _CORRECTLY_ROUNDED if basic else allowed,
                True if rounded or (not basic and within) else None if within else False,
                "measured",
                f"{word} in {dtype} is off by {worst:.2g} ulp at most on {len(a)} fixed operands: "
                + ("rounded correctly" if rounded else f"{rules.RULES} allows {allowed:.3g}"),
                grave=worst > 64 * allowed,
                trait=f"{dtype} {word} within {worst:.2g} ulp" if basic and not rounded else "",
            )
        )  # fmt: skip
    return facts
