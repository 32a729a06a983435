"""kill -9 where a session changes what is on disk: nothing is lost, all is whole."""

from __future__ import annotations

import signal
from pathlib import Path

from tapml.plan.graph_plan import GraphPlan
from tapml.repro.folder import read_repro
from tapml_targets.target import Target
from tests.offload.commands import Ended
from tests.offload.forked import run_forked, timed
from tests.offload.plants import PLANTS, plant
from tests.offload.processes import half_written
from tests.offload.sessions import FinishedSession, assert_same_verdicts, states
from tests.offload.wholeness import assert_unharmed, assert_whole

KINDS = {"write", "fsync", "rename", "commit", "remove"}
_NO_CHANGE = {("after", "write"), ("after", "fsync")}


def recorded_sites(session: Path, finished: FinishedSession, record: Path) -> list[str]:
    """``MOMENT KIND PATTERN`` of what a new session crosses, in order of its last time.

    Files of a folder are one pattern. What is crossed at the end as well does not end the session
    when it is crossed first. After a write or a sync there is on disk what there is before the
    next hit; ``scripts/kill_everywhere.py`` leaves out nothing.
    """
    session.parent.mkdir()
    arguments, cache = finished.arguments(session), finished.cache
    timed(*arguments, cache=cache, errors=record.with_suffix(".err"), fault=f"record={record}")
    sites: dict[str, None] = {}
    for line in record.read_text().splitlines():
        moment, kind, place = line.split(" ", 2)
        if Path(place).is_relative_to(session) and (moment, kind) not in _NO_CHANGE:
            site = f"{moment} {kind} */{pattern(Path(place).relative_to(session.parent))}"
            sites.pop(site, None)
            sites[site] = None
    return list(sites)


def pattern(place: Path) -> str:
    """A place in a session's folder; files of a folder in it, and the reports, are one."""
    if len(place.parts) > 2:
        return str(place.with_name("*"))
    return str(place.with_name("report.*") if place.stem == "report" else place)


def test_killed_at_a_failpoint_of_each_kind_it_goes_on_from_there(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """`exhaustive/test_kills.py` kills it at all of them."""
    sites = recorded_sites(tmp_path / "0" / "session", finished, tmp_path / "record")
    by_kind = {tuple(site.split()[:2]): site for site in reversed(sites)}
    assert {kind for _, kind in by_kind} == KINDS
    # In the middle of the verdicts as well, not only at the first row.
    middle = "before commit */session/journal.sqlite#25"
    killed_and_resumed([*by_kind.values(), middle], finished, tmp_path)


def killed_and_resumed(sites: list[str], finished: FinishedSession, tmp_path: Path) -> None:
    """Kill a session at one site after the other, each resume at the next; then let it end."""
    number, errors = 1, tmp_path / "errors"
    for site in sites:
        session = tmp_path / str(number) / "session"
        ended = kill_at(site, session, finished, errors)
        if ended.exit_code == 0:
            # What is written once per session is not crossed by one that is resumed.
            assert_unharmed(session, finished)
            number += 1
            session = tmp_path / str(number) / "session"
            ended = kill_at(site, session, finished, errors)
        if "suite.partial/" in site and ended.exit_code == 2:
            # The process that stores the suite died, and the session says so.
            assert "the process that stores the suite ended (signal 9" in ended.errors, site
        else:
            assert ended.exit_code == -signal.SIGKILL, (site, ended)
        assert_whole(session)
    session = tmp_path / str(number) / "session"
    ended = run_forked(*finished.arguments(session), cache=finished.cache, errors=errors)
    assert ended.exit_code == 0, ended.errors
    assert "the previous run was interrupted: process" in ended.errors
    assert_unharmed(session, finished)


def kill_at(site: str, session: Path, finished: FinishedSession, errors: Path) -> Ended:
    """Begin a session, or continue it, until it crosses a site."""
    arguments = finished.arguments(session)
    return run_forked(*arguments, cache=finished.cache, errors=errors, fault=f"kill@{site}")


def test_killed_while_a_failure_is_written_it_fails_again_with_a_whole_folder(
    finished: FinishedSession, tiny_plan: GraphPlan, tiny_target: Target, tmp_path: Path
) -> None:
    session, errors = finished.copy(tmp_path / "session"), tmp_path / "errors"
    cache, wrong = finished.copy_cache(tmp_path / "cache"), PLANTS["index"]
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    place = f"*/session/repro/{wrong.operator}"
    for site in (f"before write {place}", f"before rename {place}", f"after rename {place}"):
        ended = run_forked(
            "offload", "--session", session, cache=cache, errors=errors, fault=f"kill@{site}"
        )
        assert ended.exit_code == -signal.SIGKILL, ended
        assert_whole(session)
    ended = run_forked("offload", "--session", session, cache=cache, errors=errors)
    assert ended.exit_code == 1, ended.errors
    assert states(session)[wrong.operator] == "failed"
    assert half_written(session) == []
    repro = read_repro(session / "repro" / wrong.operator)
    assert repro.status == "fail"
    assert wrong.says in repro.reason
    ended = run_forked("offload", "--session", session, cache=finished.cache, errors=errors)
    assert ended.exit_code == 0, ended.errors
    assert_same_verdicts(session, finished)
