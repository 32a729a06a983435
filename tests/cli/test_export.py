"""``tapml carve --export pytest``: at once, beside a suite, and what cannot be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.export.cases import read_cases
from tapml.suite.suite import Suite
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession


@pytest.mark.parametrize("keep", [False, True], ids=["tests alone", "suite as well"])
def test_carving_and_exporting_are_one_command(
    finished: FinishedSession, tmp_path: Path, keep: bool
) -> None:
    out = ("--out", tmp_path / "suite") if keep else ()
    ended = run_here(
        "carve", "--model", finished.model, "--tokens", "1 2 3", "--new-tokens", "2", *out,
        "--operator", "softmax*", "--export", "pytest", tmp_path / "tests", "--quiet",
        cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert ended.output.endswith(f"pytest {tmp_path / 'tests'} --tapml-device opencl\n")
    # Nothing is left beside what was asked for.
    assert {path.name for path in tmp_path.iterdir()} == {"tests", *(("suite",) if keep else ())}
    cases = read_cases(tmp_path / "tests")
    with Suite.open(tmp_path / "tests" / "suite") as suite:
        ids = [test.id for test in suite.tests()]
        assert suite.verify()
    assert sorted(id for file in cases.files.values() for id in file.tests) == sorted(ids)
    assert set(cases.files) == {"test_softmax.py", "test_softmax_2.py"}


def test_a_filter_that_leaves_nothing_is_no_empty_folder(
    finished: FinishedSession, tmp_path: Path
) -> None:
    ended = run_here(
        "carve", "--from-suite", finished.folder / "suite", "--export", "pytest",
        tmp_path / "tests", "--operator", "conv*", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 2
    assert "there is nothing to export" in ended.errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected --out FOLDER for the new suite, --export pytest FOLDER, or both"),
        (("--from-suite", "s"), "--from-suite goes with --export"),
        (("--export", "unittest", "t"), "tests are exported as `pytest`"),
        (("--export", "pytest", "t", "--from-suite", "s", "--out", "o"), "leave out --out"),
        (("--export", "pytest", "t", "--from-suite", "nowhere"), "there is no suite at nowhere"),
    ],
)
def test_what_does_not_go_together_is_said(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = run_here("carve", *arguments, cache=tmp_path)
    assert ended.exit_code == 2
    assert message in ended.errors
