"""Some operators move and the others stay where they are; in any order the model passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report, states


def test_only_what_is_named_moves_and_the_model_passes_like_that(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, "--only", "softmax*", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    found = states(session)
    moved = {name for name, state in found.items() if state == "moved"}
    assert moved == {name for name in found if name.startswith("softmax")} != set()
    assert set(found.values()) == {"moved", "kept"}
    report = read_report(session)
    assert report["outcome"]["status"] == "pass"
    assert f"{len(moved)} of {len(found)} operators are on" in report["outcome"]["text"]
    reasons = {o["reason"] for o in report["operators"] if o["state"] == "kept"}
    assert reasons == {"kept on the source: not among 'softmax*'"}
    assert report["strategy"]["promised"] == len(moved)
    # The hybrid with the first of them is new, and so is that with both.
    assert report["strategy"]["model_runs"] == len(moved)


def test_an_operator_beyond_the_bound_on_slowness_fails_and_moves_without_the_bound(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    arguments = ("offload", "--session", session, "--only", "softmax")
    ended = run_here(*arguments, "--max-slowdown", "1e-9", cache=finished.cache)
    assert ended.exit_code == 1, ended.errors
    (slow,) = [o for o in read_report(session)["operators"] if o["name"] == "softmax"]
    assert (slow["state"], slow["cause"]) == ("failed", "too slow")
    assert "times the reference's" in slow["reason"]
    assert "--max-slowdown allows 1e-09 times" in slow["reason"]
    ended = run_here(*arguments, "--max-slowdown", "1e9", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert states(session)["softmax"] == "moved"
    refused = run_here(*arguments, "--max-slowdown", "0", cache=finished.cache)
    assert refused.exit_code == 2


def test_a_replay_calls_slow_what_takes_longer_than_its_bytes_need(
    finished: FinishedSession,
) -> None:
    arguments = ("replay", finished.folder, "--operator", "softmax", "--slow-against", "bandwidth")
    ended = run_here(*arguments, "--max-slowdown", "1e-9", cache=finished.cache)
    assert ended.exit_code == 1, ended.errors
    assert "GB/s; --max-slowdown allows 1e-09 times" in ended.output
    ended = run_here(*arguments, "--max-slowdown", "1e9", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    several = ("--device", finished.device, "--device", "cpu", "--json", "--max-slowdown", "1e-9")
    ended = run_here(*arguments, *several, cache=finished.cache)
    assert ended.exit_code == 1, ended.errors
    (row,) = json.loads(ended.output)["operators"]
    assert all("GB/s; --max-slowdown" in cell["reason"] for cell in row["cells"].values())
    refused = run_here(*arguments, cache=finished.cache)
    assert refused.exit_code == 2
    assert "--slow-against has no effect without --max-slowdown" in refused.errors


def test_a_pattern_that_matches_nothing_is_refused_with_names_near_it(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    before = states(session)
    arguments = ("offload", "--session", session, "--keep-on-source", "sofmax")
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 2
    (line,) = ended.error_lines
    assert "--keep-on-source 'sofmax' matches no operator; similar names: " in line
    assert "softmax" in line.partition("similar names: ")[2]
    assert states(session) == before


def test_backwards_every_hybrid_passes_and_moves_no_more_than_it_has_to(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, "--order", "reverse", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    report = read_report(session)
    names = [o["name"] for o in report["operators"]]
    assert re.findall(r"^\[\d+/\d+\] (\w+): moved", ended.errors, re.MULTILINE) == names[:0:-1]
    strategy = report["strategy"]
    assert (strategy["order"], strategy["promised"]) == ("reverse", len(names))
    # The last one, with all of them, is the verdict of the run before.
    assert (strategy["model_runs"], strategy["from_journal"]) == (len(names) - 1, 1)
    assert report["verdicts"]["kept"] == len(names)
    for entry, each in report["moved_bytes"].items():
        assert each["moved"] == each["minimum"] > 0, entry
    assert "please report it" not in ended.errors
