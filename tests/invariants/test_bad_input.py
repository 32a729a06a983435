"""Bad input on the command line: one clear line and the right exit code."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.invariants.invariant import Invariant, InvariantSet, write_set
from tapml.invariants.trace import Trace, read_trace
from tapml_targets.errors import InputError


@pytest.fixture
def good(learned: InvariantSet, tmp_path: Path) -> str:
    """The file of a set."""
    write_set(learned, tmp_path / "set")
    return str(tmp_path / "set")


def copied(trace: Trace, folder: Path, *, share: float = 1.0, version: str = "1") -> str:
    """A trace, cut or of another version."""
    (path,) = trace.folder.iterdir()
    content = path.read_bytes()[: int(share * path.stat().st_size)]
    other = content.replace(
        b"tapml-invariants-trace/1", f"tapml-invariants-trace/{version}".encode()
    )
    folder.mkdir()
    (folder / path.name).write_bytes(other)
    return str(folder)


def test_traces_of_another_version_are_refused_by_name(
    clean: Trace, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copied(clean, tmp_path / "other", version="2")
    for words in (["infer", str(clean.folder), other, "-o", good], ["check", good, other]):
        assert main(["invariants", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "tapml-invariants-trace/2; this tapml reads tapml-invariants-trace/1" in line
        assert "Collect it again" in line


def test_a_cut_trace_is_used_up_to_the_cut_and_said_to_be_cut(
    clean: Trace, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = copied(clean, tmp_path / "cut", share=0.7)
    assert main(["invariants", "check", good, cut]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^note: process-\d+\.arrow was cut; what came before the cut is used$", out, re.M
    )
    assert re.search(r"^note: rank 0 died during step \d: its trace in process-\d+", out, re.M)
    assert main(["invariants", "infer", cut, "-o", str(tmp_path / "new")]) == 0
    assert "was cut" in capsys.readouterr().err


def test_a_trace_that_is_cut_before_its_first_step_is_refused(
    clean: Trace, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = copied(clean, tmp_path / "empty", share=0.0)
    assert main(["invariants", "check", good, empty]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cut before the first step" in line


def test_an_api_that_does_not_exist_here_is_named(
    clean: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Invariant("EventContain", {"parent": "torch.gone.f", "child": "torch.g"}, ((),))
    write_set(InvariantSet("tapml-invariants/1", [], [gone]), tmp_path / "set")
    assert main(["invariants", "check", str(tmp_path / "set"), str(clean.folder)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].endswith("1 did not apply, the run does not call torch.gone.f")
    assert main(["invariants", "check", str(tmp_path / "set"), str(clean.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["never_called"] == ["torch.gone.f"]


def test_a_set_that_no_run_can_break_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.invariants"
    empty.write_text('{"format": "tapml-invariants/1", "runs": [], "invariants": []}')
    for command in (["show"], ["check"], ["merge", "--output", str(tmp_path / "out")]):
        words = [*command, str(empty), *(["trace"] if command == ["check"] else [])]
        assert main(["invariants", *words]) == 2
        assert "holds no invariant that a run could break" in capsys.readouterr().err


def test_a_damaged_trace_is_read_or_refused(clean: Trace, tmp_path: Path) -> None:
    (path,) = clean.folder.iterdir()
    content, chance = path.read_bytes(), random.Random(1)
    refused = 0
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(4):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (tmp_path / path.name).write_bytes(damaged)
        try:
            read_trace(tmp_path)
        except InputError as error:
            assert path.name in str(error) or "cut before the first step" in str(error)
            refused += 1
    assert 0 < refused < 100
