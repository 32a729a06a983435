"""A reference that is a device: its operators as functions, and in graphs with another device."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from tapml.backends.tapml_device.runner import compiled_or_unsupported
from tapml.compiler import Compiler
from tapml.compiler.job import COMPILE
from tapml.execute.arrays import Array
from tapml.execute.device_reference import DeviceReference, compile_on, executor_on
from tapml.execute.executor import Executor
from tapml.execute.moved_bytes import CountedExecutor
from tapml.execute.place import DEVICE, REFERENCE
from tapml.isolate.death import ChildDiedError, DeathReport
from tapml.plan.graph_plan import CallStep, GraphPlan
from tapml_rpc.client import Session
from tapml_rpc.local import open_local, start_local
from tapml_targets.errors import (
    EXIT_DEVICE_LOST,
    CompilerFailedError,
    LimitExceededError,
    ReferenceFailedError,
    ReferenceLostError,
    UnsupportedOperatorError,
)
from tests.conftest import RequireDevice
from tests.rpc.test_faults import process_of
from tests.small_llama import PROMPTS, SmallLlama

CLOSE = 2e-5


@pytest.fixture(scope="module")
def spec(require_device: RequireDevice) -> str:
    return f"opencl:{require_device('opencl')[0].index}"


@pytest.fixture(scope="module")
def session(spec: str) -> Iterator[Session]:
    with open_local(spec) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(llama: SmallLlama, session: Session) -> DeviceReference:
    with Compiler() as compiler:
        return compile_on(session, llama.plan, compiler)


def runs(llama: SmallLlama, runner: Executor | CountedExecutor) -> list[Array]:
    """The first output of a prefill and of a decode step on its state."""
    prompt = PROMPTS[0]
    runner.reset()
    first = runner.run("prefill", llama.model.prepare_prefill(prompt))
    second = runner.run("decode", llama.model.prepare_decode(9, len(prompt)))
    return [next(iter(outputs.values())) for outputs in (first, second)]


def test_its_operators_are_functions_over_arrays(
    llama: SmallLlama, reference: DeviceReference
) -> None:
    def compare(step: CallStep, read: Sequence[Array], wrote: Sequence[Array]) -> None:
        outputs = [np.empty_like(array) for array in wrote]
        reference[step.operator](*read, *outputs, symbols=dict(step.symbols))
        for mine, expected in zip(outputs, wrote, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=CLOSE, atol=CLOSE)

    llama.executor().run("decode", llama.model.prepare_decode(3, 0), compare)


def test_a_graph_spans_the_host_the_reference_and_the_target(
    llama: SmallLlama, reference: DeviceReference, spec: str
) -> None:
    expected = runs(llama, llama.executor())
    with open_local(spec) as target:
        executor = executor_on(llama.plan, llama.weights, reference, target)
        counted = CountedExecutor(executor)
        for placed in (0, 2, 1):
            for index, (name, library) in enumerate(reference.libraries.items()):
                if placed and index % placed == 0:
                    executor.place(name, library)
                else:
                    executor.unplace(name)
            places = set(executor.placement.values())
            assert places == ({REFERENCE}, {DEVICE}, {DEVICE, REFERENCE})[placed]
            for found, logits in zip(runs(llama, counted), expected, strict=True):
                np.testing.assert_allclose(found, logits, rtol=CLOSE, atol=CLOSE)
            for entry, each in counted.take_counts().items():
                assert each.moved == each.minimum, (entry, placed)


def test_a_lost_reference_is_not_the_targets_fault(llama: SmallLlama, spec: str) -> None:
    starting = start_local(spec)
    with starting.open() as session, Compiler() as compiler:
        reference = compile_on(session, llama.plan, compiler)
        executor = executor_on(llama.plan, llama.weights, reference)
        process_of(session).kill()
        with pytest.raises(ReferenceLostError, match=f"the reference {spec} .* was lost") as lost:
            runs(llama, executor)
    assert lost.value.exit_code == EXIT_DEVICE_LOST


def test_an_operator_without_a_kernel_is_named(llama: SmallLlama, session: Session) -> None:
    name, operator = next(iter(llama.plan.operators.items()))
    broken = {name: replace(operator, function="no function")}
    plan = GraphPlan("one", broken, entries={}, weights={}, state={}, metadata={})
    with Compiler() as compiler, pytest.raises(ReferenceFailedError) as refused:
        compile_on(session, plan, compiler)
    assert f"no kernel for 1 of 1 operators ({name}): " in str(refused.value)
    assert str(refused.value).endswith("choose another --reference")


def test_a_compiler_that_died_is_not_taken_for_one_that_refused(
    llama: SmallLlama, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = dict(list(llama.plan.operators.items())[:2])
    plan = GraphPlan("two", operators, entries={}, weights={}, state={}, metadata={})
    refused, died = Future[bytes](), Future[bytes]()
    refused.set_exception(LimitExceededError("it takes too many threads"))
    outcomes = [refused, refused]
    monkeypatch.setattr(Compiler, "_begin", lambda *_: ("key", outcomes.pop()))
    with pytest.raises(UnsupportedOperatorError, match="too many threads"):
        compiled_or_unsupported(session, plan)
    died.set_exception(ChildDiedError(DeathReport(COMPILE, signal_number=signal.SIGSEGV)))
    outcomes = [died, refused]
    with pytest.raises(CompilerFailedError, match="was killed by SIGSEGV"):
        compiled_or_unsupported(session, plan)
