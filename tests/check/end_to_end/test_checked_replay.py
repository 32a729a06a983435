"""A whole suite, a repro folder and a library function of TVM on the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tapml as tml
from tapml.check.checked_replay import FORMAT, operator_lines, replay_checked
from tapml.check.checker import Checker
from tapml.check.operator_check import OperatorCheck, check_tests
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.offload.session_suite import SUITE
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import GraphPlan, Origin
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay
from tapml.repro.writing import write_repro
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError
from tapml_targets.library import CodeModule
from tapml_targets.opencl.checker import VARIABLE, find_checker
from tapml_targets.target import Target
from tests.api.modules import WIDTH, NucleusSampler, line_of
from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession
from tests.oracles.cases import make_case
from tests.replaying.replay_kernels import linear_case, linear_library, linear_operator

# Checks a folder in a process that cannot import TVM or torch.
BASE_ONLY = """
import sys
from pathlib import Path
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "tvm_ffi", "torch", "transformers", "ml_dtypes"):
            raise ImportError(f"{name} is not part of the base install")
sys.meta_path.insert(0, Refuse())
from tapml.repro.folder import read_repro
from tapml.check.checked_replay import check_repro
from tapml.check.checker import open_checker
repro = read_repro(Path(sys.argv[1]))
with open_checker("opencl") as checker:
    print("\\n".join(check_repro(repro, sys.argv[1], checker).lines()))
"""


def test_the_operators_of_a_model_that_works_have_no_findings(
    finished: FinishedSession,
    tiny_target: Target,
    checker: Checker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Everything is compiled there.
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    seen: list[OperatorCheck] = []
    with Suite.open(finished.folder / SUITE) as suite, Compiler() as compiler:
        names = suite.tested_operators()
        report = replay_checked(
            suite, compiler, tiny_target, checker, seconds=2, on_operator=seen.append
        )
    assert report.findings == (), "\n".join(report.lines())
    assert report.status == "pass"
    assert [each.operator for each in report.operators] == [each.operator for each in seen]
    assert {each.operator for each in seen} == names
    assert all(each.checked and not each.notes for each in seen), report.lines()
    plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (plain["format"], plain["status"]) == (FORMAT, "pass")


def test_an_operator_that_does_not_compile_is_not_checked_and_the_report_is_no_pass(
    finished: FinishedSession, tiny_target: Target, checker: Checker
) -> None:
    narrow = replace(tiny_target, limits=replace(tiny_target.limits, max_threads_per_block=1))
    with Suite.open(finished.folder / SUITE) as suite, Compiler() as compiler:
        softmax = Filters(operators=("softmax",))
        operator = suite.operators["softmax"]
        library = compiler.compile(operator, tiny_target)
        broken = replace(library, modules=(CodeModule("opencl-c", b"__kernel void x( {"),))
        report = replay_checked(
            suite, compiler, narrow, checker, softmax, libraries={"softmax": broken}
        )
    assert report.status == "not run"
    assert "1 operator not checked" in report.summary()
    assert "rejected its kernels" in "\n".join(operator_lines(report.operators[0]))


@pytest.fixture(scope="module")
def repro(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repro folder whose kernel leaves out the guard of its tail."""
    operator = linear_operator()
    case = linear_case(operator, compile_reference([operator]))
    library = linear_library(operator, "missing guard")
    policy = Policy()
    with (
        open_local(finished.device) as session,
        Oracle({"linear": operator}, compile_twins, policy) as oracle,
    ):
        result = replay(operator, case, library, session, oracle, policy)
        origin = Origin("model.layers.0.mlp", "model.py:12", "aten.mm.default", "mm_3")
        failure = Failure(
            operator, result, library, session.device, oracle.appeal(case), policy, (origin,)
        )
    return write_repro(tmp_path_factory.mktemp("repro") / "linear", failure)


def test_a_repro_folder_is_checked_without_compiler_or_model(repro: Path, checker: Checker) -> None:
    library = find_checker()
    ended = subprocess.run(
        [sys.executable, "-c", BASE_ONLY, str(repro)],
        capture_output=True,
        text=True,
        env=dict(os.environ) | {VARIABLE: str(library)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "out-of-bounds write in linear" in ended.stdout
    assert "from model.py:12 (model.layers.0.mlp)" in ended.stdout


def test_the_command_prints_findings_and_ends_with_one(
    repro: Path, finished: FinishedSession, checker: Checker
) -> None:
    ended = run_here("replay", repro, "--check", cache=finished.cache)
    assert ended.exit_code == 1
    assert "out-of-bounds read in linear, kernel linear, 1680 times" in ended.output
    assert "out[i] = sum;" in ended.output
    plain = run_here("replay", repro, "--check", "--json", cache=finished.cache)
    assert plain.exit_code == 1
    found = json.loads(plain.output)["operators"][0]["findings"]
    kinds = {each["kind"]: each for each in found}
    assert kinds["out-of-bounds write"]["tensor"] == "p2"
    assert kinds["out-of-bounds write"]["text"] == "out[i] = sum;"


def test_the_command_checks_a_suite_for_a_device(
    finished: FinishedSession, checker: Checker
) -> None:
    ended = run_here(
        "replay", finished.folder, "--check", "--device", finished.device,
        "--operator", "softmax*", "--check-seconds", "5", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert "0 findings" in ended.output
    refused = run_here(
        "replay", finished.folder, "--check", "--check-seconds", "0", cache=finished.cache
    )
    assert refused.exit_code == 2


def test_a_hand_written_kernel_is_checked_before_it_is_used(
    finished: FinishedSession, checker: Checker, tmp_path: Path
) -> None:
    command = (
        "replay", finished.folder, "--check", "--device", finished.device, "--operator", "softmax",
        "--kernels", tmp_path,
    )  # fmt: skip
    missing = run_here(*command, cache=finished.cache)
    assert (missing.exit_code, len(missing.error_lines)) == (2, 1)
    assert "<folder>/<operator>/opencl/kernel.toml" in missing.errors
    written = run_here(
        "kernel", "new", finished.folder, "softmax", "--shared", tmp_path, cache=finished.cache
    )
    assert written.exit_code == 0, written.errors
    (source,) = tmp_path.rglob("*.cl")
    source.write_text(source.read_text().replace("input_0_ptr[", "input_0_ptr[4096 + ", 1))
    ended = run_here(*command, cache=finished.cache)
    assert ended.exit_code == 1, ended.errors
    assert "softmax: the kernel in" in ended.errors
    assert "out-of-bounds read in softmax" in ended.output
    assert "input_0_ptr[4096 + " in ended.output


def test_kernels_that_are_not_opencls_are_refused(
    finished: FinishedSession, checker: Checker
) -> None:
    with (
        Suite.open(finished.folder / SUITE) as suite,
        Compiler() as compiler,
        pytest.raises(InputError, match="for opencl, not those for cpu"),
    ):
        replay_checked(suite, compiler, Target("cpu"), checker)


def test_the_race_in_tvms_running_sum_is_named_at_its_line(
    require_device: RequireDevice, checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared-memory update without a barrier: PoCL's results show it, and nothing says where."""
    pocl = require_device("opencl", vendor="Portable Computing Language")[0]
    rows = np.random.default_rng(2).standard_normal((4, WIDTH)).astype(np.float32)
    plan = tml.Module(NucleusSampler(), inputs=[rows]).plan
    assert isinstance(plan, GraphPlan)
    operator = plan.operators["gpu_2d_continuous_cumsum"]
    shape = [int(extent) for extent in operator.read[0].shape if isinstance(extent, int)]
    values = np.random.default_rng(0).random(shape).astype(np.float32)
    case = make_case(operator, compile_reference([operator]), [values])
    # As TVM writes it for GPUs: tapml has a kernel of its own.
    monkeypatch.setattr("tapml.compiler.compiler.function_kind", lambda name: "gpu")
    with Compiler() as compiler:
        library = compiler.compile(operator, Target("opencl", limits=pocl.limits))
    report = check_tests(operator, [case], library, checker, origins=plan.origins_of(operator.name))
    races = [each for each in report.findings if each.kind == "data race"]
    assert races
    source = library.modules[0].code.decode().split("\n")
    for race in races:
        assert {place.access for place in race.places} == {"read", "write"}
        assert all("shared_buf" in source[place.line - 1] for place in race.places)
        assert race.address_space == "local"
        line = line_of(NucleusSampler, "torch.cumsum")
        assert race.origins[0].source == f"tests/api/modules.py:{line}"
