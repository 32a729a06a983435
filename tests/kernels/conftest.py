"""Fixtures of the tests about hand-written kernels."""

from __future__ import annotations

from tests.kernels.sessions import kernel_session

__all__ = ["kernel_session"]
