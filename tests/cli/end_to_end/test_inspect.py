"""``tapml inspect`` on everything that the real commands wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.package.files import PackageFiles
from tapml.package.make import make_package
from tapml.session.folder import FINISHED, LIBRARY
from tapml.suite.suite import Suite
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession


def inspected(finished: FinishedSession, *arguments: str | Path) -> list[dict[str, Any]]:
    """The pages as data."""
    ended = run_here("inspect", *arguments, "--json", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    pages: list[dict[str, Any]] = json.loads(ended.output)
    return pages


def text(finished: FinishedSession, *arguments: str | Path) -> Ended:
    return run_here("inspect", *arguments, cache=finished.cache)


def test_a_suite_says_what_it_holds(finished: FinishedSession) -> None:
    path = finished.folder / "suite"
    (page,) = inspected(finished, path)
    with Suite.open(path) as suite:
        tests = list(suite.tests())
        stored = suite.summary().stored
    facts = page["facts"]
    assert (page["kind"], facts["complete"]) == ("suite", True)
    assert facts["tests"] == len(tests)
    assert facts["chunks"] == suite_chunks(path) == stored.chunks
    assert facts["stored bytes"] == stored.total
    parts = ("of them weights", "of them orders", "of them activations and state")
    assert sum(facts[part] for part in parts) == stored.total
    assert facts["tensor bytes of the tests"] == sum(
        tensor.nbytes for test in tests for tensor in (*test.inputs, *test.outputs)
    )
    per_operator = page["tests per operator"]
    assert sum(row["prefill"] + row["decode"] for row in per_operator) == len(tests)
    assert sum(row["tests"] for row in page["tests per step"]) == len(tests)
    assert [row["tokens"] for row in page["prompts"]] == [4]


def suite_chunks(path: Path) -> int:
    with Suite.open(path) as suite:
        return suite.verify()


def test_a_test_says_what_its_tensors_hold(finished: FinishedSession) -> None:
    path = finished.folder / "suite"
    with Suite.open(path) as suite:
        test = next(test for test in suite.tests() if test.operator == "softmax")
        (scores,), (weights,) = test.read_inputs(), test.read_outputs()
    (page,) = inspected(finished, path, "--test", test.id)
    assert page["facts"]["key"] == test.key
    read, written = page["numbers"]
    assert [row["role"] for row in page["tensors"]] == ["input", "output"]
    assert written["min"] == pytest.approx(float(weights.min()))
    assert written["max"] == pytest.approx(float(weights.max()))
    assert written["mean"] == pytest.approx(float(np.mean(weights, dtype=np.float64)))
    assert (written["NaN"], written["Inf"]) == (0, 0)
    assert read["bytes"] == scores.nbytes
    ended = text(finished, path, "--test", test.id)
    assert test.operator_hash in ended.output
    wrong = text(finished, path, "--test", "nowhere@p0.s0")
    assert wrong.exit_code == 2
    assert "has no test 'nowhere@p0.s0'" in wrong.errors


def test_what_a_budget_left_out_is_listed(finished: FinishedSession, tmp_path: Path) -> None:
    out = tmp_path / "suite"
    ended = run_here(
        "carve", "--model", finished.model, "--out", out, "--tokens", "1 2 3 4", "--new-tokens",
        "3", "--budget", "40K", "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    (page,) = inspected(finished, out)
    facts = page["facts"]
    assert facts["budget"] == 40 << 10
    assert facts["of them activations and state"] <= 40 << 10
    assert facts["sampling order"].startswith("the first call site of every operator")
    left_out = sum(row["left out"] for row in page["tests per operator"])
    assert left_out == facts["tests left out"] > 0


def test_verify_checks_every_chunk(finished: FinishedSession, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path / "session")
    whole = text(finished, copy, "--verify")
    assert whole.exit_code == 0
    assert "verified" in whole.output
    pack = next((copy / "suite" / "packs").iterdir())
    content = bytearray(pack.read_bytes())
    content[len(content) // 3] ^= 1
    pack.write_bytes(content)
    assert text(finished, copy / "suite").exit_code == 0
    damaged = text(finished, copy, "--verify")
    assert damaged.exit_code == 2
    assert "is damaged" in damaged.errors


def test_sessions_libraries_and_tests_are_described(
    finished: FinishedSession, tmp_path: Path
) -> None:
    folder = tmp_path / "tests"
    ended = run_here(
        "carve", "--from-suite", finished.folder / "suite", "--export", "pytest", folder,
        "--operator", "softmax", "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    session, library, exported = inspected(
        finished, finished.folder, finished.folder / FINISHED / LIBRARY, folder
    )
    report = finished.report
    assert session["facts"]["status"] == "pass"
    assert len(session["operators"]) == len(report["operators"])
    assert library["facts"]["target"] == "opencl"
    assert set(library["facts"]["entries"].split(", ")) == {"prefill", "decode"}
    assert {row["operator"] for row in library["operators"]} == {
        each["name"] for each in report["operators"]
    }
    assert exported["files"] == [{"file": "test_softmax.py", "operator": "softmax", "tests": 1}]


@pytest.mark.parametrize("what", ["empty folder", "file", "nothing"])
def test_anything_else_is_refused(finished: FinishedSession, tmp_path: Path, what: str) -> None:
    path = tmp_path / "it"
    if what == "empty folder":
        path.mkdir()
    elif what == "file":
        path.write_bytes(b"\x93 something else")
    ended = text(finished, path)
    assert ended.exit_code == 2
    assert str(path) in ended.errors or "Library" in ended.errors


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_a_package_says_what_it_holds(
    finished: FinishedSession, tmp_path: Path, archive: bool
) -> None:
    made = make_package(finished.folder, tmp_path / "out", archive=archive)
    (page,) = inspected(finished, made.path)
    report, facts = finished.report, page["facts"]
    assert page["kind"] == "package"
    assert facts["model"] == report["model"]["name"]
    assert facts["validated on"].startswith(report["target"]["name"])
    assert facts["device fingerprint"] == report["target"]["fingerprint"]
    assert facts["driver"] == report["target"]["driver_version"]
    assert facts["verdict"] == f"pass: {report['outcome']['text']}"
    assert facts["parameters"] == report["model"]["parameters"]
    assert facts["bytes"] == made.nbytes
    assert facts["format version"] == 1
    assert "apache-tvm" in facts["made with"]
    assert [row["entry"] for row in page["entries"]] == ["decode", "prefill"]
    assert facts["operators"] == len(page["operators"]) == len(report["operators"])
    sites = {row["operator"]: row["call sites"] for row in page["operators"]}
    assert sites == {each["name"]: each["sites"] for each in report["operators"]}
    hashes = {row["file"]: row["SHA-256"] for row in page["files"]}
    stored = PackageFiles(made.path).manifest.files
    assert hashes == {name: each.sha256 for name, each in stored.items()}
    shown = text(finished, made.path).output
    assert "--verify checks that as well" in " ".join(shown.split())


def test_a_damaged_package_is_said_to_be(finished: FinishedSession, tmp_path: Path) -> None:
    path = make_package(finished.folder, tmp_path / "out").path
    weights = path / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([255 - content[-1]]))
    assert text(finished, path).exit_code == 0, "the data of the weights is not read"
    ended = text(finished, path, "--verify")
    assert ended.exit_code == 2
    assert "weights.safetensors has SHA-256" in ended.errors
    ended = text(finished, path, "--tests")
    assert "is a package: --test and --tests need a suite" in ended.errors
    (path / "package.json").write_text('{"name": "of another tool"}')
    ended = text(finished, path)
    assert (ended.exit_code, "is not that of a package" in ended.errors) == (2, True)
