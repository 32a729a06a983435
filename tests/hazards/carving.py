"""Modules carved on the CPU and replayed on a device whose code generator may be sick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

import tapml as tml
from tapml.api.observed import ObservedTest, observe
from tapml.carving.probing import Probing
from tapml.carving.replay import replay_operator
from tapml.carving.replay_results import OperatorVerdict
from tapml.carving.repro_failure import Failure
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.graph.plan import GraphPlan, Operator
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.target import Target

Array = np.ndarray[Any, Any]
Sickness = Callable[[Library, Mapping[str, str]], Library]
"""What a sick platform makes of a Library compiled with some options."""


def unchanged(library: Library, options: Mapping[str, str]) -> Library:
    """A platform in good health."""
    return library


@dataclass(frozen=True)
class Platform:
    """A device and what its code generator makes of operators."""

    session: Session
    compiler: Compiler
    sickness: Sickness
    options: Mapping[str, str]

    def compile(self, operator: Operator, options: Mapping[str, str]) -> Library:
        """Compile with the platform's options, changed by `options`."""
        chosen = {**self.options, **options}
        device = self.session.device
        target = Target(device.platform, tuple(sorted(chosen.items())), device.limits)
        return self.sickness(self.compiler.compile(operator, target), chosen)


@contextmanager
def platform(
    device: DeviceDescription,
    compiler: Compiler,
    sickness: Sickness = unchanged,
    options: Mapping[str, str] | None = None,
) -> Iterator[Platform]:
    """A device in a server process of its own."""
    with open_local(device) as session:
        yield Platform(session, compiler, sickness, options or {})


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
