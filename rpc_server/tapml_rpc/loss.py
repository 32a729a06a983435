"""Adds to a session's loss why its lease ended, if it had one, and its last commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from tapml_rpc.failures import render_command
from tapml_targets.errors import DeviceLostError, TapmlError

# The end of a connection and its reason arrive separately, and either may be first.
_NEWS_SECONDS: Final = 2.0

Told = TypeVar("Told", bound=TapmlError)


class Held(Protocol):
    """A tracker's lease, as a session under it needs it. Its `token` is a secret."""

    token: str

    def over(self, seconds: float) -> str:
        """Why it is over, waiting up to `seconds` for that; empty while it is not."""


def told_with(error: Told, lease: Held | None, commands: Iterable[object]) -> Told:
    """The same error, with why the lease ended and the last commands sent.

    Waits shortly for a lease to end. A loss whose cause the device reported, such as the death of a
    worker, is not the lease's.
    """
    what = str(error)
    if lease is not None and type(error) is DeviceLostError:
        why = lease.over(_NEWS_SECONDS)
        what = f"{what}: {why}" if why else what
    shown = "\n  ".join(render_command(command) for command in commands)
    error.args = (f"{what}\nlast commands sent:\n  {shown}" if shown else what,)
    return error


def token_of(lease: Held | str) -> str:
    """The token of a lease, given as itself or by its token."""
    return lease if isinstance(lease, str) else lease.token


def held(lease: Held | str) -> Held | None:
    """The lease itself, if more than its token is known."""
    return None if isinstance(lease, str) else lease
