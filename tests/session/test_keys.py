"""What an operator-wise verdict depends on is in its key, and whom it accuses in its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tapml.oracles.oracle import ORACLE_VERSION
from tapml.oracles.probing import PROBING_VERSION
from tapml.plan.graph_plan import Operator
from tapml.plan.torch_subgraph import TorchForm
from tapml.replaying.results import ReplayResult, Timing, summarise
from tapml.runs.result_key import ResultKey, hash_parts
from tapml.session import keys
from tapml.session.changes import what_changed
from tapml.session.operator_verdict import replay_data
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Status, Suspect, Verdict
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.installed import compiler_versions, versions_text
from tapml_targets.library import Parameter
from tapml_targets.limits import Limits
from tests.oracles.cases import MemoryCase

OPERATOR = Operator(
    name="softmax",
    hash="12",
    parameters=(Parameter("x", (4,), "float32", "input"), Parameter("y", (4,), "int32", "output")),
    symbols=(),
    function="",
    script="",
    output_kinds=("value",),
)


DEVICE = DeviceDescription(
    "opencl", 0, "a device", "a vendor", "gpu", "3.1", Limits(max_shared_memory_bytes=1 << 15)
)


def key_of(operator: Operator = OPERATOR, **changed: Any) -> ResultKey:
    parts: dict[str, Any] = {
        "kernel": "k",
        "tests": "t",
        "policy": Policy(),
        "device": DEVICE,
    } | changed
    return keys.operator_key(operator, **parts)


def test_a_key_changes_with_everything_a_verdict_depends_on_and_says_with_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = DEVICE
    found = {
        "the kernel": key_of(kernel="other"),
        "the carved tests": key_of(tests="other"),
        "the policy": key_of(policy=Policy(seed=1)),
        "the driver: 3.1 -> 3.2": key_of(device=replace(device, driver_version="3.2")),
        "the device: opencl a device -> opencl b": key_of(device=replace(device, name="b")),
        "the device's limits": key_of(device=replace(device, limits=Limits())),
        "the device's details": key_of(device=replace(device, details={"a": "b"})),
        "the reference's device": key_of(reference="a device and its driver"),
        "the operator's function": key_of(replace(OPERATOR, hash="13")),
        "what its outputs mean: value -> index": key_of(replace(OPERATOR, output_kinds=("index",))),
        "the torch operators it came from": key_of(
            replace(OPERATOR, torch_forms=(TorchForm((), None, "none"),))
        ),
    }
    versions = {"PROBING_VERSION": "the probes' version", "ORACLE_VERSION": "the oracle's version"}
    for name, words in versions.items():
        with monkeypatch.context() as patch:
            before = getattr(keys, name)
            patch.setattr(keys, name, 1_000_000)
            found[f"{words}: {before} -> 1000000"] = key_of()
    with monkeypatch.context() as patch:
        patch.setattr(keys, "versions_text", lambda *names: f"another {names[0]}")
        found["PyTorch"] = key_of()
    with monkeypatch.context() as patch:
        patch.setattr(keys, "compiler_versions", lambda: "apache-tvm 99.1, apache-tvm-ffi 0.0")
        found["the compiler"] = key_of()
    assert len({key.hash for key in found.values()} | {key_of().hash}) == len(found) + 1
    assert key_of() == key_of()
    for line, key in found.items():
        (told,) = what_changed(key_of().parts, key)
        assert told.startswith(line)


def test_a_model_key_says_what_changed() -> None:
    def model_of(**changed: Any) -> ResultKey:
        kernels = {"add": "k1", "matmul": "k2"}
        values: dict[str, Any] = {
            "kernels": kernels, "trace": "t", "device": DEVICE, "stage": "model"
        }  # fmt: skip
        return keys.model_key(**(values | changed))

    now = model_of()
    assert what_changed(now.parts, now) == ()
    assert what_changed(model_of(kernels={"add": "k1", "matmul": "k3"}).parts, now) == (
        "the kernels on the target",
    )
    assert what_changed(model_of(kernels={"add": "k1"}).parts, now) == (
        "which operators are on the target",
        "the kernels on the target",
    )
    assert what_changed(model_of(trace="u").parts, now) == ("the reference's run",)
    assert what_changed(model_of(reference="r").parts, now) == ("the reference's device",)


def test_an_operator_key_is_what_it_was_in_the_first_journals() -> None:
    """A session begun by an earlier tapml finds its verdicts: the form of the hash is fixed."""
    text = versions_text("torch")
    assert key_of().hash == hash_parts(
        stage="operator",
        kernel="k",
        body="12",
        kinds="value",
        torch=f"{text} ()",
        oracle=str(ORACLE_VERSION),
        tests="t",
        probes=str(PROBING_VERSION),
        policy=Policy().hash,
        compiler=compiler_versions(),
        device=fingerprint(DEVICE),
    )


def result(status: Status, suspect: Suspect) -> ReplayResult:
    case = MemoryCase("a@p0.s0", "softmax", (), (), ())
    cause = Cause.NONE if status == "pass" else Cause.DISPUTED
    verdict = Verdict(status, 1.0, (), "why", suspect, cause)
    return ReplayResult(case.id, "softmax", verdict, Timing(0, 0, None, 0, 0), case)


def test_data_says_who_is_suspect_in_the_targets_place_even_where_tests_pass() -> None:
    results = [result("pass", ""), result("pass", "reference"), result("degraded", "importer")]
    data = replay_data(summarise(OPERATOR, results, results[-1], ()))
    assert data["suspects"] == [
        "the reference is suspect, not the target (1 of 3 tests)",
        "the importer is suspect, not the target (1 of 3 tests)",
    ]
    results = [result("fail", "target"), result("pass", "")]
    assert replay_data(summarise(OPERATOR, results, results[0], ()))["suspects"] == []
