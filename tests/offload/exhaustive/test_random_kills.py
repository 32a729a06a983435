"""kill -9 at any moment of any phase."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.offload.forked import forked, timed
from tests.offload.phases import last_phase
from tests.offload.sessions import FinishedSession
from tests.offload.wholeness import assert_unharmed, assert_whole

pytestmark = pytest.mark.run_first
KILLS: Final = 20
PHASES: Final = 4


def test_killed_at_random_moments_of_all_phases_it_ends_in_the_same_verdicts(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """Seeded parts of the time an unbroken run takes; a session that ends makes room for a new."""
    generator, errors = random.Random(7), tmp_path / "errors"
    whole = timed(*finished.arguments(tmp_path / "0"), cache=finished.cache, errors=errors)
    sessions, phases = [tmp_path / "1"], set[str]()
    # On a machine that has become slower or faster meanwhile, until enough phases were met.
    for number in range(5 * KILLS):
        if number >= KILLS and len(phases) >= PHASES:
            break
        arguments = finished.arguments(sessions[-1])
        with forked(*arguments, cache=finished.cache, errors=errors) as running:
            ended = running.ended(generator.uniform(0, whole))
            if ended is None:
                running.kill()
        phases.add(last_phase(errors.read_text()))
        if ended is not None:
            assert ended.exit_code == 0, ended.errors
            sessions.append(tmp_path / str(len(sessions) + 1))
        elif sessions[-1].exists():
            assert_whole(sessions[-1])
    timed(*finished.arguments(sessions[-1]), cache=finished.cache, errors=errors)
    for session in sessions:
        assert_unharmed(session, finished)
    assert len(phases) >= PHASES, phases
