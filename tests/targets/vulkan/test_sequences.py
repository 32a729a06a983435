"""Launches of a recorded sequence may run at once, and none of them disturbs another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml_targets.driver import Driver
from tapml_targets.vulkan import launching
from tests.targets.vulkan.sequences import (
    COUNTS,
    OTHER_WORK,
    WINDOWS,
    Memory,
    Step,
    disturbing,
    play,
)

WINDOW = st.integers(0, len(WINDOWS) - 1)
STEPS = st.builds(Step, WINDOW, WINDOW, st.sampled_from(COUNTS), st.integers(1, 3)).filter(
    lambda step: step.is_defined
)
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(
    sequences=st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=2),
    between=st.lists(st.sampled_from(OTHER_WORK), min_size=1, max_size=4),
)
def test_a_sequence_computes_what_its_launches_compute_one_by_one(
    driver: Driver, sequences: Sequence[Sequence[Step]], between: Sequence[str]
) -> None:
    play(driver, sequences, between)


@FEW
@given(steps=st.lists(STEPS, min_size=2, max_size=12), most=st.sampled_from([2, 32]))
def test_a_barrier_lies_between_launches_of_which_one_disturbs_the_other(
    driver: Driver, steps: Sequence[Step], most: int
) -> None:
    """Drivers of a processor run launches one by one: only what is recorded shows it."""
    memory = Memory(driver)
    launches = memory.bound(steps)
    launcher, queue = driver._launcher, driver._queue  # type: ignore[attr-defined]
    encode, barrier, barriers = launcher._encode, queue.barrier, 0
    spans: list[tuple[int, int]] = []

    def counted(commands: Any) -> None:
        nonlocal barriers
        barriers += 1
        barrier(commands)

    def encoded(*given: Any) -> None:
        before = barriers
        encode(*given)
        spans.append((before, barriers))

    with (
        patch.object(launcher, "_encode", encoded),
        patch.object(queue, "barrier", counted),
        patch.object(launching, "MOST_TOGETHER", most),
    ):
        driver.launch_all(driver.bind(launches))
    assert all(spans[first][1] < spans[second][0] for first, second in disturbing(launches))
    together = [sum(first[1] == second[0] for second in spans) for first in spans]
    assert max(together) <= most + sum(0 in each.threads for each in launches)
    memory.free()
