"""Failing tests of small operators: a torch function, inputs, and a kernel with something wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.importing.importer import import_module
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_targets.library import CodeModule, Library
from tapml_targets.target import Target
from tests.oracles.cases import make_case

POLICY = Policy()
UNSTABLE_TANH = "#define tanh(x) ((exp(2.0f*(x))-1.0f)/(exp(2.0f*(x))+1.0f))\n"

Change = Callable[[Operator, Library], Library]


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands)


@dataclass
class Failing:
    """A failure, the session it failed on, and the compiler that makes the same mistake again."""

    failure: Failure
    session: Session
    compile: Callable[[Operator, Mapping[str, str]], Library]


def plan_of(function: Callable[..., Any], *arrays: NDArray[Any]) -> GraphPlan:
    module = function if isinstance(function, torch.nn.Module) else Function(function)
    return import_module(module, tuple(torch.from_numpy(array) for array in arrays)).plan


def operator_of(function: Callable[..., Any], *arrays: NDArray[Any]) -> Operator:
    """The one operator that a function becomes."""
    (operator,) = plan_of(function, *arrays).operators.values()
    return operator


def fail(
    operator: Operator, arrays: list[NDArray[Any]], change: Change, session: Session, by: Compiler
) -> Failing:
    """Replay `operator` with `change` made in its kernels; it must not pass."""
    plain = Target(session.device.platform, (), session.device.limits)

    def compile_changed(each: Operator, options: Mapping[str, str]) -> Library:
        target = replace(plain, options=tuple(sorted(options.items())))
        return change(each, by.compile(each, target))

    case = make_case(operator, compile_reference([operator]), arrays)
    library = compile_changed(operator, {})
    with Oracle({operator.name: operator}, compile_twins, POLICY) as oracle:
        result = replay(operator, case, library, session, oracle, POLICY)
        assert result.verdict.status in ("fail", "degraded"), result.verdict
        expectation = oracle.appeal(case)
    failure = Failure(operator, result, library, session.device, expectation, POLICY)
    return Failing(failure, session, compile_changed)


def edited(library: Library, pattern: str, replacement: str) -> Library:
    """The Library with every match in its source replaced; there must be one."""
    (module,) = library.modules
    source, count = re.subn(pattern, replacement, module.code.decode())
    assert count, f"{pattern!r} is not in:\n{module.code.decode()}"
    return replace(library, modules=(CodeModule(module.dialect, source.encode()),))


def in_one(operator: Operator, pattern: str, replacement: str) -> Change:
    """An edit of the operator's own kernel; kernels of its steps stay right."""

    def change(each: Operator, library: Library) -> Library:
        return edited(library, pattern, replacement) if each.name == operator.name else library

    return change


def wherever(pattern: str, replacement: str) -> Change:
    """An edit of every kernel in which the pattern is, those of single steps included."""

    def change(each: Operator, library: Library) -> Library:
        source = library.modules[0].code.decode()
        return edited(library, pattern, replacement) if re.search(pattern, source) else library

    return change


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
