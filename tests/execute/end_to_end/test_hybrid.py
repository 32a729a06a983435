"""Operators on a real device, one after the other and in any mixture, beside the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tapml.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.executor import Executor
from tapml.execute.generate import GeneratedToken, Runner, greedy
from tapml.execute.plan_runner import PlanRunner
from tapml_rpc.client import Session
from tapml_rpc.local import open_local, start_local
from tapml_targets.errors import DeviceLostError, InputError
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.small_llama import PROMPTS, SmallLlama

# Logits of the small model are below 10; both sides sum at most 100 products in float32.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


@pytest.fixture(scope="module")
def libraries(llama: SmallLlama, session: Session) -> dict[str, Library]:
    target = Target("opencl", limits=session.device.limits)
    with Compiler() as compiler:
        outcomes = list(compiler.compile_all(llama.plan.operators.values(), target))
    assert not [outcome for _, outcome in outcomes if not isinstance(outcome, Library)]
    return {o.name: outcome for o, outcome in outcomes if isinstance(outcome, Library)}


def generate(llama: SmallLlama, runner: Runner) -> list[GeneratedToken]:
    return [
        token
        for prompt in PROMPTS
        for token in greedy(llama.model, runner, prompt, 4, stop_at_end=False)
    ]


def assert_same(got: list[GeneratedToken], expected: list[GeneratedToken]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, rtol=0, atol=TOLERANCE)
        assert one.token == other.token


def test_the_model_runs_at_every_step_of_the_migration(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    expected = generate(llama, llama.executor())
    executor = llama.executor(session)
    for number, name in enumerate(libraries):
        executor.place(name, libraries[name])
        if number % 5 == 0:
            assert_same(generate(llama, executor), expected)
    assert executor.placed == set(llama.plan.operators)
    device = executor.device
    assert device is not None
    read = device.bytes_read
    assert_same(generate(llama, executor), expected)
    logits = llama.model.vocabulary * 4
    positions = sum(len(prompt) + 3 for prompt in PROMPTS)
    assert device.bytes_read - read == positions * logits


def test_any_mixture_agrees_with_the_reference(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    expected = generate(llama, llama.executor())
    executor = llama.executor(session)
    chance = random.Random(7)
    for _ in range(5):
        for name, library in libraries.items():
            if chance.random() < 0.5:
                executor.place(name, library)
            else:
                executor.unplace(name)
        assert_same(generate(llama, executor), expected)


def test_single_call_sites_can_move(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    operator = max(libraries, key=lambda name: len(llama.plan.sites_of(name)))
    sites = [call.site for call in llama.plan.sites_of(operator)]
    executor = llama.executor(session)
    executor.place(operator, libraries[operator], sites=sites[:1])
    assert_same(generate(llama, executor), generate(llama, llama.executor()))


def test_state_on_the_device_can_be_kept_and_restored(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    executor = llama.executor(session)
    for name, library in libraries.items():
        executor.place(name, library)
    executor.run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    snapshot = executor.snapshot_state()
    step = llama.model.prepare_decode(9, len(PROMPTS[0]))
    first = executor.run("decode", step)
    executor.run("decode", llama.model.prepare_decode(10, len(PROMPTS[0]) + 1))
    executor.restore_state(snapshot)
    second = executor.run("decode", step)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_an_observer_sees_tensors_of_the_device(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    def watch(executor: Executor) -> list[tuple[str, list[np.ndarray]]]:
        seen: list[tuple[str, list[np.ndarray]]] = []
        executor.run(
            "prefill",
            llama.model.prepare_prefill(PROMPTS[0]),
            observer=lambda step, _, wrote: seen.append((step.site, list(wrote))),
        )
        return seen

    executor = llama.executor(session)
    for name in list(libraries)[::2]:
        executor.place(name, libraries[name])
    for (site, got), (other, expected) in zip(
        watch(executor), watch(llama.executor()), strict=True
    ):
        assert site == other
        for a, b in zip(got, expected, strict=True):
            scale = max(1.0, float(np.abs(b.astype("f8")).max()))
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * scale)


def test_a_deferred_library_is_read_before_the_next_run_that_uses_it(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    first, second, third = list(libraries)[:3]
    read: list[str] = []

    def later(name: str) -> Library:
        read.append(name)
        return libraries[name]

    executor = llama.executor(session)
    for name in (first, second, third):
        executor.place(name, lambda name=name: later(name))  # type: ignore[misc]
    executor.unplace(second)
    assert not read
    assert_same(generate(llama, executor), generate(llama, llama.executor()))
    assert read == [first, third]
    executor.place(second, lambda: libraries[first])
    with pytest.raises(InputError, match=f"has no operator '{second}'"):
        generate(llama, executor)


def test_what_cannot_be_placed_is_named(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    first, second = list(libraries)[:2]
    executor = llama.executor(session)
    with pytest.raises(InputError, match="no operator 'nothing'"):
        executor.place("nothing", libraries[first])
    with pytest.raises(InputError, match=f"the Library for opencl has no operator '{first}'"):
        executor.place(first, libraries[second])
    with pytest.raises(InputError, match="not a call site"):
        executor.place(first, libraries[first], sites=["nowhere"])
    with pytest.raises(InputError, match="no session"):
        llama.executor().place(first, libraries[first])


def test_another_session_takes_over_after_the_first_is_lost(
    llama: SmallLlama, libraries: dict[str, Library]
) -> None:
    expected = generate(llama, llama.executor())
    worker = start_local("opencl")
    lost = worker.open()
    executor = llama.executor(lost)
    for name, library in libraries.items():
        executor.place(name, library)
    executor.run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    worker.process.kill()
    with pytest.raises(DeviceLostError):
        executor.run("decode", llama.model.prepare_decode(9, len(PROMPTS[0])))
    lost.close()
    with open_local("opencl") as session:
        executor.attach(session)
        assert_same(generate(llama, executor), expected)


def test_the_finished_plan_generates_the_same_on_the_device_alone(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    linked = link_entries(llama.plan, libraries)
    with PlanRunner(llama.plan, llama.weights, linked, session) as runner:
        assert_same(generate(llama, runner), generate(llama, llama.executor()))
