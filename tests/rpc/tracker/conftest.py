"""A tracker process for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rpc.tracker.trackers import (
    PATIENCE_SECONDS,
    Child,
    TrackerProcess,
    foreign_device,
    kept_addresses,
)

WEBSOCKET = ("--websocket", "ws://127.0.0.1:0")


@pytest.fixture(scope="module")
def shared_tracker() -> Iterator[TrackerProcess]:
    with TrackerProcess("tcp://127.0.0.1:0", *WEBSOCKET) as process:
        yield process


@pytest.fixture
def tracker() -> Iterator[TrackerProcess]:
    """A tracker that a test may kill."""
    with TrackerProcess(*kept_addresses()) as process:
        yield process


@pytest.fixture(scope="module")
def foreign(shared_tracker: TrackerProcess) -> Iterator[Child]:
    """A device of somebody else's making, called ``page``, at the shared tracker."""
    with foreign_device(shared_tracker.websocket, "page") as device:
        assert device.ready.wait(PATIENCE_SECONDS)
        yield device
