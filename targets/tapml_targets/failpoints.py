"""Failpoints: places at which tests kill a process or fill its disk.

Code that writes, syncs, renames, commits or removes a durable file or folder passes a failpoint
before and after. It does nothing unless the environment asks for a fault.

``TAPML_FAULT`` is one of::

    record=FILE              append a line per failpoint to FILE: moment, kind, place
    kill@MOMENT KIND PLACE   kill this process (SIGKILL) there
    stop@MOMENT KIND PLACE   stop this process (SIGSTOP) there, until SIGCONT
    full@MOMENT KIND PLACE   fail there with ENOSPC, and at everything written from then on

MOMENT is ``before`` or ``after``, KIND one of :data:`KINDS`, PLACE a pattern (``fnmatch``) of the
path, followed by ``#3`` for the third time it matches in a process::

    TAPML_FAULT='kill@after rename */report.json'
    TAPML_FAULT='full@before commit */journal.sqlite#3'

Child processes inherit the variable and count separately.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import cache
from types import TracebackType
from typing import Final, Literal, TypeAlias, get_args

from tapml_targets.errors import InputError

VARIABLE: Final = "TAPML_FAULT"
Kind: TypeAlias = Literal["write", "fsync", "rename", "commit", "remove"]
Moment: TypeAlias = Literal["before", "after"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)
Place: TypeAlias = "str | os.PathLike[str]"

_Hook: TypeAlias = Callable[[Moment, Kind, str], None]
_NOTHING: Final = nullcontext()
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def failpoint(kind: Kind, place: Place) -> AbstractContextManager[None]:
    """Mark a block that changes the file or folder at `place`.

    Raises
    ------
    OSError
        ENOSPC, if the environment asks for a full disk.
    InputError
        If ``TAPML_FAULT`` cannot be read.
    """
    hook = planned_fault()
    return _NOTHING if hook is None else _Failpoint(hook, kind, os.fspath(place))


@cache
def planned_fault() -> _Hook | None:
    """The fault that the environment asks for, read once, or None."""
    text = os.environ.get(VARIABLE)
    return None if not text else _parse(text)


class _Failpoint(AbstractContextManager[None]):
    def __init__(self, hook: _Hook, kind: Kind, place: str) -> None:
        self.hook, self.kind, self.place = hook, kind, place

    def __enter__(self) -> None:
        self.hook("before", self.kind, self.place)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.hook("after", self.kind, self.place)


class _Site:
    """The n-th match of a pattern, counted over all threads."""

    def __init__(self, moment: str, kind: str, pattern: str, number: int) -> None:
        self.moment, self.kind, self.pattern, self.number = moment, kind, pattern, number
        self.seen = 0
        self.lock = threading.Lock()

    def reached(self, moment: Moment, kind: Kind, place: str) -> bool:
        if (moment, kind) != (self.moment, self.kind) or not fnmatchcase(place, self.pattern):
            return False
        with self.lock:
            self.seen += 1
            return self.seen == self.number


def _parse(text: str) -> _Hook:
    if text.startswith("record="):
        return _recorder(text.removeprefix("record="))
    what, at, where = text.partition("@")
    words = where.split(" ", 2)
    if not at or what not in {*_SIGNALS, "full"} or len(words) != 3:
        raise _unreadable(text)
    moment, kind, pattern = words
    head, mark, tail = pattern.rpartition("#")
    number = 1
    if mark and tail.isdecimal() and tail.isascii():
        pattern, number = head, int(tail)
    if moment not in MOMENTS or kind not in KINDS or not pattern or number < 1:
        raise _unreadable(text)
    site = _Site(moment, kind, pattern, number)
    return _filler(site) if what == "full" else _signaller(site, _SIGNALS[what])


def _unreadable(text: str) -> InputError:
    return InputError(
        f"{VARIABLE} is {text!r}; expected record=FILE, or kill@, stop@ or full@ followed by "
        f"'{'|'.join(MOMENTS)} {'|'.join(KINDS)} PATTERN'; unset it to run without faults"
    )


def _recorder(path: str) -> _Hook:
    def record(moment: Moment, kind: Kind, place: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # One write: lines of several processes do not mix.
            os.write(descriptor, f"{moment} {kind} {place}\n".encode())
        finally:
            os.close(descriptor)

    return record


def _signaller(site: _Site, number: signal.Signals) -> _Hook:
    def tell(moment: Moment, kind: Kind, place: str) -> None:
        if site.reached(moment, kind, place):
            os.kill(os.getpid(), number)

    return tell


def _filler(site: _Site) -> _Hook:
    full = threading.Event()

    def fill(moment: Moment, kind: Kind, place: str) -> None:
        if site.reached(moment, kind, place):
            full.set()
        # Removing needs no space.
        if full.is_set() and moment == "before" and kind != "remove":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)

    return fill
