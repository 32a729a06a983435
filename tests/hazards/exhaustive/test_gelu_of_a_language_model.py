"""Section IV-E of the paper: NaN from a GELU, on one platform and for some prompts only.

A language model whose MLP has the GELU of Phi-2 is carved on two prompts. The platform's fast math
has a tanh made of exponentials, which is NaN beyond 44 in float32. One token drives one neuron of
the first layer that far. On OpenCL that tanh is planted; Metal's is the simulator's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tapml as tml
from tapml.compiler.compiler import Compiler
from tapml.compiler.twin import compile_twins
from tapml.diagnosis.diagnose import diagnose
from tapml.diagnosis.variants import second_driver
from tapml.failures.diagnosis import Diagnosis
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import is_probe
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay as replay_test
from tapml.replaying.suite_replay import SuiteReplay, SuiteReplayer
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tests.conftest import RequireDevice
from tests.hazards.carving import FAST_MATH, FaultyCompiler, unchanged
from tests.hazards.kernel_faults import tanh_unstable_under_fast_math
from tests.models.folders import make_folder

HOT, NEURON = 42, 17
COLD_PROMPT, HOT_PROMPT = (3, 5, 7, 11), (3, 5, HOT, 11)


@dataclass(frozen=True)
class Found:
    """What a replay of the suite found, and the diagnosis of its only failure."""

    replay: SuiteReplay
    failure: Failure
    diagnosis: Diagnosis


def heat(folder: Path) -> None:
    """One neuron of the first layer's MLP answers to one token."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    embeddings = tensors["model.embed_tokens.weight"]
    gate = tensors["model.layers.0.mlp.gate_proj.weight"]
    # Long enough for what attention adds to it not to turn it.
    embeddings[HOT] *= 40
    gate[NEURON] = 2 * embeddings[HOT] / torch.linalg.vector_norm(embeddings[HOT])
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("gelu")
    heat(make_folder(folder / "model", "one_layer", hidden_act="gelu_pytorch_tanh"))
    with tml.carve(
        folder / "model",
        folder / "suite",
        tokens=[COLD_PROMPT, HOT_PROMPT],
        new_tokens=1,
        operators=["*gelu*", "*matmul*", "*norm*", "softmax"],
    ) as kept:
        yield kept


def from_carved(
    failures: Sequence[Failure], replay: SuiteReplay, session: Session, oracle: Oracle
) -> Failure:
    """The only failure, on the carved test that shows it and not on a probe beside it."""
    (failure,) = failures
    (verdict,) = (each for each in replay.operators if each.operator == failure.operator.name)
    (case,) = (
        result.case
        for result in verdict.results
        if result.verdict.status == "fail" and not is_probe(result.test)
    )
    result = replay_test(failure.operator, case, failure.library, session, oracle, failure.policy)
    return replace(failure, result=result, expectation=oracle.appeal(case))


def find(suite: Suite, device: DeviceDescription, faulty: FaultyCompiler) -> Found:
    policy = Policy()
    failures: list[Failure] = []
    with open_local(device) as session, Oracle(suite.operators, compile_twins, policy) as oracle:
        replayer = SuiteReplayer(suite, session, faulty, oracle, policy)
        replay = replayer.replay(on_failure=failures.append)
        failure = from_carved(failures, replay, session, oracle)
        diagnosis = diagnose(
            failure,
            session,
            compile=faulty.for_device(device),
            second=second_driver(session),
            budget_seconds=120,
        )
    return Found(replay, failure, diagnosis)


@pytest.fixture(scope="module", params=["opencl", "metal"])
def found(
    request: pytest.FixtureRequest,
    suite: Suite,
    require_device: RequireDevice,
    compiler: Compiler,
) -> Found:
    if request.param == "metal":
        device, fault = require_device("metal", vendor="simulated")[0], unchanged
    else:
        device = require_device("opencl", vendor="Portable Computing Language")[0]
        fault = tanh_unstable_under_fast_math
    return find(suite, device, FaultyCompiler(compiler, fault, FAST_MATH))


def test_one_operator_fails_and_all_others_pass(found: Found) -> None:
    failed = [each.operator for each in found.replay.operators if each.status != "pass"]
    assert failed == ["fused_gelu_tanh_multiply"]
    assert len(found.replay.operators) > 5


def test_only_the_prompt_with_the_hot_token_shows_it(found: Found) -> None:
    (verdict,) = (each for each in found.replay.operators if each.status != "pass")
    carved = {r.test: r.verdict.status for r in verdict.results if not is_probe(r.test)}
    assert len(carved) == 2
    assert [status for test, status in carved.items() if "@p0" in test] == ["pass"]
    assert [status for test, status in carved.items() if "@p1" in test] == ["fail"]


def test_the_nan_is_traced_to_the_tanh_and_the_token(found: Found) -> None:
    origin = found.diagnosis.nonfinite
    assert origin is not None
    assert origin.hazard == "tanh overflow"
    assert "tanh" in origin.step
    assert origin.argument > 44
    assert origin.index[-2:] == (HOT_PROMPT.index(HOT), NEURON)
    assert origin.parameter_index[-2:] == (HOT_PROMPT.index(HOT), NEURON)


def test_the_cause_is_the_platform_s_fast_math(found: Found) -> None:
    attribution = found.diagnosis.attribution
    assert attribution is not None
    assert attribution.cause == "math"
    assert "fast_math" in attribution.sentence
