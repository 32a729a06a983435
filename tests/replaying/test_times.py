"""Operators' times, measured on a real device against a workload whose relations are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.twin import compile_twins
from tapml.models import Prompt
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict
from tapml.replaying.times import measure
from tapml.suite.carved_test import CarvedTest
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.library import CodeModule, Library
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.small_llama import PROMPTS, SmallLlama, small_llama

SMALL = "fused_silu_multiply_2"


@dataclass(frozen=True)
class Replayed:
    """Operators of a small Llama, replayed once for all tests here."""

    llama: SmallLlama
    session: Session
    oracle: Oracle
    tests: dict[str, list[CarvedTest]]
    libraries: dict[str, Library]
    verdicts: dict[str, OperatorVerdict]

    def times(
        self, name: str, verdict: OperatorVerdict | None = None, library: Library | None = None
    ) -> dict[str, Any]:
        """The operator's times."""
        plan, reference = self.llama.plan, self.llama.reference
        return measure(
            plan, reference, self.session, self.operator(name), self.tests[name],
            verdict or self.verdicts[name], library=library,
        )  # fmt: skip

    def operator(self, name: str) -> Operator:
        """The operator."""
        return self.llama.plan.operators[name]


@pytest.fixture(scope="module")
def replayed(
    require_device: RequireDevice, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replayed]:
    index = min(each.index for each in require_device("opencl"))
    llama = small_llama()
    folder = tmp_path_factory.mktemp("times") / "suite"
    prompts = tuple(Prompt(ids) for ids in PROMPTS)
    carve(llama.model, llama.executor(), prompts, folder, max_new_tokens=3).close()
    chosen = [llama.plan.operators[name] for name in (*prefill_matmuls(llama), heavy(llama), SMALL)]
    tests, libraries, verdicts = {}, {}, {}
    with (
        open_local(f"opencl:{index}") as session,
        Suite.open(folder) as suite,
        Compiler(workers=1) as compiler,
        Oracle({each.name: each for each in chosen}, compile_twins, Policy()) as oracle,
    ):
        target = Target("opencl", limits=session.device.limits)
        for operator, library in compiler.compile_all(chosen, target):
            assert isinstance(library, Library)
            name = operator.name
            tests[name] = list(suite.tests(Filters(operators=(name,))))
            libraries[name] = library
            verdicts[name] = replay_operator(
                operator, tests[name], library, session, oracle, Policy()
            )
        yield Replayed(llama, session, oracle, tests, libraries, verdicts)


def heavy(llama: SmallLlama) -> str:
    """The decode's last product: a row of the vocabulary, of one shape at all steps."""
    return llama.plan.entries["decode"].calls[-1].operator


def prefill_matmuls(llama: SmallLlama) -> tuple[str, ...]:
    """A matrix product of the prefill with several call sites."""
    (entry,) = (entry for name, entry in llama.plan.entries.items() if name == "prefill")
    counts: dict[str, int] = {}
    for call in entry.calls:
        if call.operator.startswith("matmul"):
            counts[call.operator] = counts.get(call.operator, 0) + 1
    return (max(counts, key=lambda name: counts[name]),)


def test_times_are_of_all_call_sites_and_say_whose_clock_they_are_by(replayed: Replayed) -> None:
    (name,) = prefill_matmuls(replayed.llama)
    times = replayed.times(name)
    sites = replayed.llama.plan.sites_of(name)
    assert times["clock"] == "device events"
    assert sum(entry["calls"] for entry in times["entries"].values()) == len(sites) > 1
    (entry,) = times["entries"].values()
    assert entry["tests"] == len(replayed.tests[name])
    assert times["target_ms"] == pytest.approx(entry["target_ms"] / entry["calls"], rel=1e-4)
    assert times["reference_ms"] == pytest.approx(entry["reference_ms"] / entry["calls"], rel=1e-4)
    assert times["ratio"] == pytest.approx(times["target_ms"] / times["reference_ms"], rel=1e-4)
    json.dumps(times, allow_nan=False)


def test_a_kernel_that_does_its_work_again_and_again_is_slow(replayed: Replayed) -> None:
    """Only the target changes: the reference, and so the ratio, shows it."""
    slow = _repeated(replayed.libraries[SMALL], 4000)
    operator, tests = replayed.operator(SMALL), replayed.tests[SMALL]
    verdict = replay_operator(operator, tests, slow, replayed.session, replayed.oracle, Policy())
    assert verdict.status == "pass", verdict.reason
    before, after = replayed.times(SMALL), replayed.times(SMALL, verdict)
    assert after["target_ms"] > 5 * before["target_ms"]
    assert after["ratio"] > 2 * before["ratio"]


def test_without_device_events_the_hosts_clock_is_used_and_named(replayed: Replayed) -> None:
    blind, library = _blind(replayed.verdicts[SMALL]), replayed.libraries[SMALL]
    times = replayed.times(SMALL, blind, library)
    slow = replayed.times(SMALL, blind, _repeated(library, 200_000))
    assert times["clock"] == slow["clock"] == "host"
    assert times["entries"].keys() == replayed.times(SMALL)["entries"].keys()
    assert slow["target_ms"] > 3 * times["target_ms"]


def test_a_kernel_that_cannot_run_again_has_no_time_and_does_no_harm(replayed: Replayed) -> None:
    """No verdict comes of it, and the session goes on."""
    times = replayed.times(
        SMALL, _blind(replayed.verdicts[SMALL]), replayed.libraries[heavy(replayed.llama)]
    )
    assert times["target_ms"] is None
    replayed.session.fence()


def test_without_events_and_library_nothing_is_known(replayed: Replayed) -> None:
    nothing = replace(replayed.verdicts[SMALL], results=())
    times = replayed.times(SMALL, nothing)
    assert times["target_ms"] is None
    assert times["ratio"] is None
    (entry,) = times["entries"].values()
    assert entry["calls"] > 0
    assert entry["target_ms"] is None


def test_a_cold_first_launch_does_not_count(replayed: Replayed) -> None:
    """Tests that do the same work give one time, their median."""
    name = heavy(replayed.llama)
    verdict = replayed.verdicts[name]
    slowed = replace(
        verdict,
        results=tuple(
            replace(result, timing=replace(result.timing, kernel=1.0)) if index == 0 else result
            for index, result in enumerate(verdict.results)
        ),
    )
    assert replayed.times(name, slowed)["target_ms"] < 100


def test_prompts_of_other_lengths_are_other_work(replayed: Replayed) -> None:
    """Of a prefill, both sides are means over the lengths, each as often as it was carved."""
    (name,) = prefill_matmuls(replayed.llama)
    lengths = {next(iter(test.shape_symbols.values())) for test in replayed.tests[name]}
    assert len(lengths) == 2
    longest = max(lengths)
    verdict = replayed.verdicts[name]
    kernel = {test.id: 1.0 if longest in test.shape_symbols.values() else 3.0
              for test in replayed.tests[name]}  # fmt: skip
    made_up = replace(
        verdict,
        results=tuple(
            replace(result, timing=replace(result.timing, kernel=2 * kernel[result.test]))
            for result in verdict.results
        ),
    )
    assert replayed.times(name, made_up)["target_ms"] == pytest.approx(2000.0)


def _blind(verdict: OperatorVerdict) -> OperatorVerdict:
    """What a device without events gives."""
    results = (
        replace(result, timing=replace(result.timing, kernel=None)) for result in verdict.results
    )
    return replace(verdict, results=tuple(results))


def _repeated(library: Library, times: int) -> Library:
    """A Library whose kernels do all of their work so many times."""
    modules = []
    for module in library.modules:
        before, brace, body = module.code.decode().rpartition(") {\n")
        assert brace, "one kernel, one body"
        end = body.rstrip().removesuffix("}")
        code = (
            f"{before}{brace}for (volatile int again = 0; again < {times}; ++again) {{\n{end}}}\n}}"
        )
        modules.append(CodeModule(module.dialect, code.encode()))
    return replace(library, modules=tuple(modules))
