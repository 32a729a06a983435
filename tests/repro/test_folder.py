"""Repro folders: whole or not at all, replayed with the base install, and trusted in nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.failures.diagnosis import Attribution, Diagnosis
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Origin
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay
from tapml.repro.folder import failure_of, is_repro, read_repro, replay_repro
from tapml.repro.writing import write_repro
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError, ProtocolError, SetupError
from tests.conftest import RequireDevice
from tests.replaying.replay_kernels import linear_case, linear_library, linear_operator

POLICY = Policy()
# Replays a folder in a process that cannot import TVM or torch.
BASE_ONLY = """
import sys
from pathlib import Path
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "tvm_ffi", "torch", "transformers", "ml_dtypes"):
            raise ImportError(f"{name} is not part of the base install")
sys.meta_path.insert(0, Refuse())
from tapml.repro.folder import read_repro, replay_repro
from tapml_rpc.local import open_local
repro = read_repro(Path(sys.argv[1]))
with open_local(repro.device["platform"]) as session:
    verdict = replay_repro(repro, session).verdict
print(verdict.status, verdict.reason)
"""


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


@pytest.fixture(scope="module")
def failure(session: Session) -> Failure:
    operator = linear_operator()
    library = linear_library(operator, "reduction start")
    case = linear_case(operator, compile_reference([operator]))
    with Oracle({"linear": operator}, compile_twins, POLICY) as oracle:
        result = replay(operator, case, library, session, oracle, POLICY)
        assert result.verdict.status == "fail"
        origin = Origin("model.layers.0.mlp", "model.py:12", "aten.mm.default", "mm_3")
        return Failure(
            operator, result, library, session.device, oracle.appeal(case), POLICY, (origin,)
        )


@pytest.fixture
def folder(failure: Failure, tmp_path: Path) -> Path:
    return write_repro(tmp_path / "linear", failure)


def test_a_folder_replays_to_the_same_verdict(
    folder: Path, failure: Failure, session: Session
) -> None:
    assert is_repro(folder)
    repro = read_repro(folder)
    result = replay_repro(repro, session)
    assert repro.status == result.verdict.status == "fail"
    assert result.verdict.reason == failure.result.verdict.reason == repro.reason
    np.testing.assert_array_equal(result.actual[0], failure.result.actual[0])


def test_a_folder_replays_with_the_base_install(folder: Path, failure: Failure) -> None:
    run = subprocess.run(
        [sys.executable, "-c", BASE_ONLY, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"fail {failure.result.verdict.reason}"


def test_an_edited_kernel_is_what_runs(folder: Path, session: Session) -> None:
    source = folder / "kernels" / "00.cl"
    source.write_text(source.read_text().replace("int k = 1;", "int k = 0;"))
    repro = read_repro(folder)
    assert repro.edited == ("00.cl",)
    assert replay_repro(repro, session).verdict.status == "pass"


def test_a_folder_says_what_and_where(folder: Path, failure: Failure) -> None:
    readme = (folder / "README.txt").read_text()
    assert "tapml replay linear" in readme
    assert "model.py:12" in readme
    assert failure.result.verdict.reason in readme
    errors = (folder / "errors.txt").read_text()
    assert "420 elements are wrong" in errors
    assert "axis 0: everywhere (0..6)" in errors
    description = json.loads((folder / "repro.json").read_text())
    assert description["device"]["name"] == failure.device.name
    assert description["versions"]["numpy"] == np.__version__
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.txt", "actual", "errors.txt", "expected", "independent.tapml", "inputs", "kernels",
        "library.tapml", "operator.tapml", "reference", "repro.json", "repro.py", "sensitivity",
    }  # fmt: skip
    loaded = np.load(folder / "inputs" / "01_p1.npy", allow_pickle=False)
    np.testing.assert_array_equal(loaded, failure.result.case.read_inputs()[1])


def test_a_folder_gives_back_the_operator_and_what_a_diagnosis_needs(
    folder: Path, failure: Failure, session: Session
) -> None:
    repro = read_repro(folder)
    assert repro.definition == failure.operator
    assert repro.lifetimes == ("activation", "weight")
    assert repro.expectation.independent == failure.expectation.independent
    assert repro.expectation.independent is not None
    assert repro.origins == failure.origins
    again = failure_of(repro, replay_repro(repro, session), session.device)
    assert again.operator == failure.operator
    assert again.result.verdict == failure.result.verdict
    assert again.device == failure.device


def test_a_folder_without_the_operators_function_replays_all_the_same(
    folder: Path, session: Session
) -> None:
    (folder / "operator.tapml").unlink()
    repro = read_repro(folder)
    result = replay_repro(repro, session)
    assert result.verdict.status == "fail"
    with pytest.raises(InputError, match=r"operator\.tapml"):
        failure_of(repro, result, session.device)


def test_a_diagnosis_is_kept_and_shown(failure: Failure, tmp_path: Path) -> None:
    attribution = Attribution("kernel text", (("normal", "fail"),), "the text was edited")
    diagnosis = Diagnosis("linear", where=("every row",), attribution=attribution)
    folder = write_repro(tmp_path / "linear", replace(failure, diagnosis=diagnosis))
    assert read_repro(folder).diagnosis == diagnosis
    for page in ("README.txt", "errors.txt"):
        assert "cause: kernel text: the text was edited" in (folder / page).read_text()


def test_a_folder_replaces_one_of_its_name_and_leaves_nothing_else(
    folder: Path, failure: Failure
) -> None:
    (folder / "old").write_text("left behind")
    write_repro(folder, failure)
    assert not (folder / "old").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["linear"]


def test_a_parent_that_is_a_file_is_one_clear_error(failure: Failure, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot write .*linear"):
        write_repro(tmp_path / "file" / "linear", failure)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_repro_folder_is_one_clear_error(tmp_path: Path) -> None:
    assert not is_repro(tmp_path)
    with pytest.raises(InputError, match="is not a repro folder"):
        read_repro(tmp_path)


def test_a_folder_of_before_verdicts_had_causes_is_refused_with_what_to_do(folder: Path) -> None:
    description = json.loads((folder / "repro.json").read_text())
    description["format"] = 2
    del description["verdict"]["cause"]
    (folder / "repro.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match="format 2; this tapml reads format 3: write it again"):
        read_repro(folder)


@pytest.mark.parametrize(
    "damage",
    [
        "truncated json",
        "wrong shape",
        "pickle",
        "escape",
        "short library",
        "version",
        "cause",
        "huge",
        "other operator",
        "short operator",
        "diagnosis",
        "lifetimes",
    ],
)
def test_a_damaged_folder_is_refused(damage: str, folder: Path) -> None:
    description = json.loads((folder / "repro.json").read_text())
    first = folder / "inputs" / "00_p0.npy"
    match damage:
        case "truncated json":
            text = (folder / "repro.json").read_text()
            (folder / "repro.json").write_text(text[: len(text) // 2])
        case "wrong shape":
            np.save(first, np.zeros((7, 61), np.float32))
        case "pickle":
            np.save(first, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        case "escape":
            description["files"]["inputs"][0] = "../../../etc/hostname"
            (folder / "repro.json").write_text(json.dumps(description))
        case "short library":
            data = (folder / "library.tapml").read_bytes()
            (folder / "library.tapml").write_bytes(data[:-20])
        case "version":
            description["format"] = 99
            (folder / "repro.json").write_text(json.dumps(description))
        case "cause":
            description["verdict"]["cause"] = "bad luck"
            (folder / "repro.json").write_text(json.dumps(description))
        case "huge":
            with first.open("r+b") as file:
                file.truncate(1 << 30)
        case "other operator":
            description["operator"]["name"] = "another"
            (folder / "repro.json").write_text(json.dumps(description))
        case "short operator":
            data = (folder / "operator.tapml").read_bytes()
            (folder / "operator.tapml").write_bytes(data[: len(data) // 2])
        case "diagnosis":
            (folder / "diagnosis.json").write_text('{"operator": 7}')
        case "lifetimes":
            description["test"]["lifetimes"] = ["weight"]
            (folder / "repro.json").write_text(json.dumps(description))
    with pytest.raises((InputError, ProtocolError)):
        read_repro(folder)
