"""A tracker process for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rpc.tracker.trackers import TrackerProcess


@pytest.fixture(scope="module")
def shared_tracker() -> Iterator[TrackerProcess]:
    with TrackerProcess() as process:
        yield process


@pytest.fixture
def tracker() -> Iterator[TrackerProcess]:
    """A tracker that a test may kill."""
    with TrackerProcess() as process:
        yield process
