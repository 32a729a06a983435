"""kill -9 at every failpoint that a session crosses."""

from __future__ import annotations

from pathlib import Path

from tests.offload.end_to_end.test_kills import KINDS, killed_and_resumed, recorded_sites
from tests.offload.sessions import FinishedSession


def test_killed_at_every_failpoint_it_goes_on_from_there(
    finished: FinishedSession, tmp_path: Path
) -> None:
    sites = recorded_sites(tmp_path / "0" / "session", finished, tmp_path / "record")
    assert {site.split()[1] for site in sites} == KINDS
    sites += [f"{moment} commit */session/journal.sqlite#25" for moment in ("before", "after")]
    killed_and_resumed(sites, finished, tmp_path)
