"""The first argument of a job that runs in a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A process of a group that :meth:`tapml.isolate.pool.Pool.group` started.

    Its process stays alive until all members have answered, because slower ranks may still need
    it. It is then killed without an interpreter shutdown.

    Attributes
    ----------
    rank
        0 to ``size - 1``.
    size
        The number of members, the "world size".
    port
        A port of 127.0.0.1 that was free when the group started; 0 if not requested.
    folder
        A folder for the group, empty at first and removed when the group ends; ``""`` if not
        requested.
    """

    rank: int
    size: int
    port: int = 0
    folder: str = ""
