"""Modules carved on the CPU and replayed on a device whose code generator may be faulty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from torch import nn

import tapml as tml
from tapml.compiler.compiler import Compiler, Progress
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict
from tapml.validation.observed import ObservedTest, observe
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.target import Target

Array = np.ndarray[Any, Any]
KernelFault = Callable[[Library, Mapping[str, str]], Library]
"""Makes a faulty platform's Library of a right one that was compiled with some options."""

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
FAST_MATH: Final[Mapping[str, str]] = MappingProxyType({"fast_math": "1"})


def unchanged(library: Library, options: Mapping[str, str]) -> Library:
    """No fault: the Library as it is."""
    return library


class FaultyCompiler(Compiler):
    """A compiler whose kernels have a fault, and that always compiles with some options."""

    def __init__(
        self, right: Compiler, fault: KernelFault, options: Mapping[str, str] = NO_OPTIONS
    ) -> None:
        # Processes and cache are those of the right compiler.
        self._right = right
        self._fault = fault
        self._options = options

    def compile_all(
        self, operators: Iterable[Operator], target: Target, *, progress: Progress | None = None
    ) -> Iterator[tuple[Operator, Library | CompileError]]:
        options = {**self._options, **dict(target.options)}
        chosen = replace(target, options=tuple(sorted(options.items())))
        for operator, made in self._right.compile_all(operators, chosen, progress=progress):
            if isinstance(made, Library):
                yield operator, self._fault(made, options)
            else:
                yield operator, made

    def for_device(
        self, device: DeviceDescription
    ) -> Callable[[Operator, Mapping[str, str]], Library]:
        """What compiles an operator for a device with further options."""

        def compile_one(operator: Operator, options: Mapping[str, str]) -> Library:
            chosen = tuple(sorted(options.items()))
            return self.compile(operator, Target(device.platform, chosen, device.limits))

        return compile_one


@dataclass(frozen=True)
class Platform:
    """A device and the compiler of its kernels."""

    session: Session
    compiler: FaultyCompiler

    @property
    def compile(self) -> Callable[[Operator, Mapping[str, str]], Library]:
        """Compiles an operator with further options."""
        return self.compiler.for_device(self.session.device)


@contextmanager
def platform(
    device: DeviceDescription,
    compiler: Compiler,
    fault: KernelFault = unchanged,
    options: Mapping[str, str] = NO_OPTIONS,
    opened: Callable[[DeviceDescription], AbstractContextManager[Session]] = open_local,
) -> Iterator[Platform]:
    """A device, by default in a server process of its own."""
    with opened(device) as session:
        yield Platform(session, FaultyCompiler(compiler, fault, options))


@dataclass(frozen=True)
class Carved:
    """The operators of a module, what they read and wrote on the CPU, and probes beside that."""

    plan: GraphPlan
    tests: Sequence[ObservedTest]
    oracle: Probing
    policy: Policy

    def replay(self, on: Platform) -> dict[str, tuple[OperatorVerdict, Library]]:
        """Every operator on a device."""
        verdicts = {}
        for operator in self.plan.operators.values():
            own = [test for test in self.tests if test.operator == operator.name]
            library = on.compile(operator, {})
            tests = self.oracle.tests(operator, own)
            verdict = replay_operator(
                operator, tests, library, on.session, self.oracle, self.policy
            )
            verdicts[operator.name] = (verdict, library)
        return verdicts

    def failure(self, on: Platform) -> Failure:
        """The only operator that does not pass; the others must."""
        failed = {n: pair for n, pair in self.replay(on).items() if pair[0].status != "pass"}
        reasons = {name: verdict.reason for name, (verdict, _) in failed.items()}
        assert len(failed) == 1, f"expected one wrong operator, found {reasons}"
        ((name, (verdict, library)),) = failed.items()
        assert verdict.worst is not None
        return Failure(
            operator=self.plan.operators[name],
            result=verdict.worst,
            library=library,
            device=on.session.device,
            expectation=self.oracle.appeal(verdict.worst.case),
            policy=self.policy,
            origins=self.plan.origins_of(name),
        )


@contextmanager
def carved(module: nn.Module, *inputs: Array) -> Iterator[Carved]:
    """Import a module, run it on the CPU and keep what every operator read and wrote."""
    mod = tml.Module(module, inputs=list(inputs))
    plan, policy = mod.plan, Policy()
    executor = Executor(plan, mod.weights, compile_reference(plan))
    named = dict(zip(mod.graph.inputs, inputs, strict=True))
    tests, _ = observe(executor, mod.entry, named)
    with ExitStack() as stack:
        oracle = stack.enter_context(Oracle(plan.operators, compile_twins, policy))
        probing = Probing(oracle, lambda: compile_reference(plan))
        yield Carved(plan, tests, probing, policy)
