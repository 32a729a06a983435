"""A suite as pytest files: written, and run by a real pytest on a real device."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.export.cases import (
    CASES,
    ExportedCases,
    ExportedFile,
    read_cases,
)
from tapml.export.pytest_files import export_pytest, file_names
from tapml.repro.folder import is_repro
from tapml.suite.suite import Suite
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.library_format import pack, unpack
from tests.export.exports import run_pytest
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, edit
from tests.offload.sessions import FinishedSession

OPERATOR = "fused_silu_multiply"
FILE = f"test_{OPERATOR}"


@pytest.fixture(scope="module")
def exported(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "tests"
    ended = run_here(
        "carve", "--from-suite", finished.folder / "suite", "--export", "pytest", folder,
        "--libraries", finished.device, "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    return folder


def with_library(
    exported: Path, to: Path, change: Callable[[Library], Library], operator: str = OPERATOR
) -> Path:
    """A copy of exported tests in which an operator has another Library."""
    to.mkdir()
    for path in exported.rglob("*"):
        copy = to / path.relative_to(exported)
        if path.is_dir():
            copy.mkdir()
        else:
            copy.hardlink_to(path)
    library = to / "libraries" / "opencl" / f"test_{operator}.tapml"
    changed = pack(change(unpack(library.read_bytes())))
    library.unlink()
    library.write_bytes(changed)
    return to


def test_exported_tests_pass_without_model_and_compiler(
    exported: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    tested = run_pytest(
        exported, "--tapml-device", finished.device, cache=finished.copy_cache(tmp_path / "cache"),
        junit=tmp_path / "junit.xml", toolkit=False,
    )  # fmt: skip
    assert tested.exit_code == 0, tested.output
    with Suite.open(finished.folder / "suite") as suite:
        ids = {test.id for test in suite.tests()}
    probes = {probe for file in read_cases(exported).files.values() for probe in file.probes}
    assert probes, "a softmax is replayed on large numbers"
    ids |= probes
    assert tested.outcomes() == {"passed": len(ids)}
    for name, case in tested.cases.items():
        assert name.partition("[")[2].removeprefix(f"{finished.device}-")[:-1] in ids
        assert case["tapml_status"] == "pass"
        assert float(case["tapml_ratio"]) >= 0
        assert case["tapml_device"] == finished.report["target"]["name"]
    assert {case["tapml_operator"] for case in tested.cases.values()} == {
        operator["name"] for operator in finished.report["operators"]
    }


def test_without_libraries_the_compiler_makes_them(
    finished: FinishedSession, tmp_path: Path
) -> None:
    folder = tmp_path / "tests"
    ended = run_here(
        "carve", "--from-suite", finished.folder / "suite", "--export", "pytest", folder,
        "--operator", "softmax", "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert [path.name for path in folder.glob("*.py")] == ["test_softmax.py"]
    tested = run_pytest(
        folder, "--tapml-device", finished.device, cache=finished.cache, junit=tmp_path / "j.xml"
    )
    assert tested.exit_code == 0, tested.output
    absent = run_pytest(
        folder, "--tapml-device", finished.device, cache=finished.cache, junit=tmp_path / "k.xml",
        toolkit=False,
    )  # fmt: skip
    assert absent.exit_code == 1
    assert "compiling needs Apache TVM, which is not installed" in absent.output


def test_a_wrong_kernel_is_a_failing_test_with_a_folder_that_replays_it(
    exported: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    plant = PLANTS["missing guard"]
    folder = with_library(exported, tmp_path / "tests", plant.change)
    tested = run_pytest(
        folder, "--tapml-device", finished.device, "--tapml-repro", tmp_path / "repro",
        "-k", f"{FILE} or test_softmax", cache=finished.cache, junit=tmp_path / "junit.xml",
    )  # fmt: skip
    assert tested.exit_code == 1
    failed = {name: case for name, case in tested.cases.items() if case["outcome"] == "failure"}
    assert failed
    for name, case in failed.items():
        assert name.startswith(f"{FILE}[")
        assert case["tapml_status"] == "fail"
        assert plant.says in case["message"]
        assert finished.report["target"]["name"] in case["message"]
    repro, *_ = sorted(path for path in (tmp_path / "repro").rglob("*") if is_repro(path))
    assert str(repro) in tested.output
    again = run_here("replay", repro, "--device", finished.device, cache=finished.cache)
    assert again.exit_code == 1
    assert again.output.startswith("fail: ")


def test_a_lost_device_fails_what_is_left_at_once(
    exported: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    crash = edit(r"(__kernel void [^;{]*\{)", r"\1 *(volatile __global int*)8 = 1;")
    # The files run in the order of their names.
    files = read_cases(exported).files
    before_all = files[min(files)].operator
    folder = with_library(exported, tmp_path / "tests", crash, before_all)
    tested = run_pytest(
        folder, "--tapml-device", finished.device, cache=finished.cache, junit=tmp_path / "j.xml"
    )
    assert tested.exit_code == 1
    messages = [case["message"] for case in tested.cases.values()]
    assert tested.outcomes() == {"failure": len(messages)}
    first = next(iter(tested.cases)).partition("-")[2][:-1]
    assert all("device lost: " in message for message in messages)
    assert all(f"was lost in test {first}" in message for message in messages)


def test_an_absent_device_is_skipped_by_name_or_fails_where_it_must_be_there(
    exported: Path, tmp_path: Path
) -> None:
    arguments = ("--tapml-device", "opencl:77", "-k", "test_softmax")
    skipped = run_pytest(
        exported, *arguments, cache=tmp_path, junit=tmp_path / "a.xml", TAPML_REQUIRE_DEVICES="0"
    )
    assert skipped.exit_code == 0, skipped.output
    assert set(skipped.outcomes()) == {"skipped"}
    assert all("not run: " in case["message"] for case in skipped.cases.values())
    assert "opencl:77" in skipped.output
    required = run_pytest(
        exported, *arguments, cache=tmp_path, junit=tmp_path / "b.xml", TAPML_REQUIRE_DEVICES="1"
    )
    assert required.exit_code == 1
    assert "TAPML_REQUIRE_DEVICES=1 says there must be one" in required.output


def test_the_same_suite_gives_the_same_files(
    exported: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    with Suite.open(finished.folder / "suite") as suite:
        export_pytest(suite, tmp_path / "again")
    for path in exported.rglob("*"):
        if path.is_dir() or "libraries" in path.parts or path.name == "README.txt":
            continue
        again = tmp_path / "again" / path.relative_to(exported)
        assert again.read_bytes() == path.read_bytes(), path.name
    assert not (tmp_path / "again" / "libraries").exists()
    with Suite.open(exported / "suite") as copied, Suite.open(finished.folder / "suite") as suite:
        assert copied.verify() == suite.verify()


def test_a_folder_is_replaced_only_if_it_holds_exported_tests(
    exported: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    with Suite.open(finished.folder / "suite") as suite:
        with pytest.raises(InputError, match="exists: name another folder"):
            export_pytest(suite, exported)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(InputError, match="it is not replaced"):
            export_pytest(suite, tmp_path / "mine", overwrite=True)
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["thesis.txt"]


@given(st.lists(st.text(max_size=120), unique=True, max_size=20))
def test_names_of_files_are_identifiers_and_no_two_alike(operators: list[str]) -> None:
    names = file_names(operators)
    assert len(set(names.values())) == len(operators)
    for name in names.values():
        assert name.isascii()
        assert name.startswith("test_")
        assert name.removesuffix(".py").isidentifier()
        assert len(name) < 100


def test_no_name_of_a_model_becomes_code(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = '"""\nimport os; os.abort()\n"""'
    with Suite.open(finished.folder / "suite") as suite:
        suite.facts["model"] = hostile
        operators = dict(suite.operators)
        monkeypatch.setitem(suite.__dict__, "operators", operators)
        files = export_pytest(suite, tmp_path / "tests").files
    assert hostile not in (tmp_path / "tests" / "README.txt").read_text()
    for name in files:
        module = ast.parse((tmp_path / "tests" / name).read_text())
        # A docstring, two imports, one function.
        assert [type(node).__name__ for node in module.body] == [
            "Expr", "Import", "ImportFrom", "FunctionDef",
        ]  # fmt: skip
    assert read_cases(tmp_path / "tests").model == hostile


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        '{"format": "tapml-pytest/9", "model": "m", "files": {}}',
        '{"format": "tapml-pytest/2", "model": "m", "files": {"a": {"operator": "x"}}}',
        '{"format": "tapml-pytest/2", "model": "m", "files": {"a": {"operator": "x", "tests": 1}}}',
        '{"format": "tapml-pytest/2", "model": "m", "files": {"a": {"operator": "x", '
        '"tests": [[]]}}}',
    ],
)
def test_a_damaged_list_of_cases_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / CASES).write_text(damage)
    with pytest.raises(InputError, match=r"cases\.json is damaged.*export again"):
        read_cases(tmp_path)


@given(
    st.text(),
    st.dictionaries(st.text(), st.tuples(st.text(), st.lists(st.text())), max_size=5),
)
def test_a_list_of_cases_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory,
    model: str,
    files: dict[str, tuple[str, list[str]]],
) -> None:
    cases = ExportedCases(
        model, {name: ExportedFile(operator, tuple(ids)) for name, (operator, ids) in files.items()}
    )
    folder = tmp_path_factory.mktemp("cases")
    (folder / CASES).write_text(json.dumps(cases.to_json()))
    assert read_cases(folder) == cases


def test_replaying_needs_the_base_install_alone() -> None:
    absent = ("tvm", "tvm_ffi", "torch", "transformers", "ml_dtypes", "safetensors", "tokenizers")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import tapml.export.exported, tapml.replaying.replayer, tapml.pytest_plugin"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
