"""A tracker that these tests share."""

from tests.rpc.tracker.conftest import shared_tracker

__all__ = ["shared_tracker"]
