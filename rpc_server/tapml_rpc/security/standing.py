"""Whether admitted clients may stay, and how often one of them may connect.

A key or a token is checked when a connection opens. If it is removed from its list afterwards, that
is noticed here: its sessions are ended, and its open connections get no new one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address
from typing import Final, TypeAlias

from tapml_rpc.host_names import numeric
from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.keys import is_key
from tapml_rpc.standard_error import say
from tapml_targets.errors import SetupError, TapmlError

FAILURES: Final = 10
FAILURE_SECONDS: Final = 60.0
_ADDRESSES: Final = 4096


class FailureLimit:
    """Counts failures by address, in bounded memory; one client owns 64 bits of IPv6."""

    def __init__(
        self,
        failures: int = FAILURES,
        seconds: float = FAILURE_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> float:
        """Count a failure; seconds to wait from now on, 0 while there have been few."""
        key = _network(address)
        now = self._clock()
        times = self._times.setdefault(key, deque(maxlen=self._failures))
        self._times.move_to_end(key)
        if len(self._times) > _ADDRESSES:
            self._times.popitem(last=False)
        while times and now - times[0] >= self._seconds:
            times.popleft()
        waiting = 0.0
        if len(times) == self._failures:
            waiting = self._seconds - (now - times[0])
        else:
            times.append(now)
        return waiting


def _network(address: str) -> str:
    try:
        number = numeric(address)
    except ValueError:
        return address[:64]
    if isinstance(number, IPv6Address):
        return str(IPv6Address(int(number) >> 64 << 64))
    return str(number)


LOOPBACK_IDENTITY: Final = "loopback"
"""Of all clients without a secret."""
LEASE_IDENTITY: Final = "lease:"
"""Begins the identity of a client with a lease's token; the holder's identity follows."""
HELLOS: Final = 240
HELLO_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5


def is_proven(identity: str) -> bool:
    """Whether an identity is one client's: a key's or a token's, or that of a lease of a key."""
    return identity.removeprefix(LEASE_IDENTITY) != LOOPBACK_IDENTITY


Judge: TypeAlias = Callable[[str], str]
"""Why an identity may not stay; empty if it may, or if this judge does not know it."""
Sessions: TypeAlias = Callable[[], Iterable[tuple[str, Callable[[str], None]]]]
"""The identity of each open session, and a function that ends it for a reason."""


class Standing:
    """Watches over the identities of a server's sessions. From any thread.

    `limit` bounds the hellos of one identity, to 240 a minute if None. The lists are checked
    every `seconds`.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        limit: FailureLimit | None = None,
        seconds: float = LOOK_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._limit = limit or FailureLimit(HELLOS, HELLO_SECONDS)
        self._seconds = seconds
        self._judges: list[Judge] = []
        # Judged once: an editor may be replacing the file just now.
        self._suspects: set[str] = set()
        self._said = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, judge: Judge) -> None:
        """Check a list from now on."""
        self._judges.append(judge)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tapml-standing", daemon=True)
            self._thread.start()

    def greet(self, identity: str) -> None:
        """Count a hello; raises SetupError if there were too many, or it is not admitted."""
        if identity == LOOPBACK_IDENTITY:
            # It is shared by everybody on this machine, and not counted.
            return
        with self._lock:
            waiting = self._limit.note(identity)
        if waiting:
            raise SetupError(
                "this client has sent too many hellos within a minute; try again in "
                f"{waiting:.0f} s. Keep a session open instead of opening one for each task"
            )
        try:
            why = self._why(identity)
        except TapmlError as error:
            self._say(error)
            raise SetupError(
                "nobody is admitted now: the device's list cannot be read, and its log says why"
            ) from None
        if why:
            raise SetupError(f"this client is not admitted any more: {why}")

    def close(self) -> None:
        """Stop checking."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """End the sessions of identities that were rejected twice in a row."""
        sessions = list(self._sessions())
        found = {identity: self._judged(identity) for identity in {each[0] for each in sessions}}
        for identity, end in sessions:
            if found[identity] and identity in self._suspects:
                end(found[identity])
        self._suspects = {identity for identity, why in found.items() if why}

    def _judged(self, identity: str) -> str:
        try:
            return self._why(identity)
        except TapmlError as error:
            # Nobody new is admitted. Open sessions are judged again when it can be read.
            self._say(error)
            return ""

    def _why(self, identity: str) -> str:
        return next(filter(None, (judge(identity) for judge in self._judges)), "")

    def _say(self, error: TapmlError) -> None:
        """Report to the operator, once for each fault."""
        if self._said != str(error):
            self._said = str(error)
            say(f"no client is admitted, and open sessions stay, until this is fixed: {error}")

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()


def listed_key(clients: AllowList) -> Judge:
    """The judge of keys: those in the list may stay."""

    def judge(identity: str) -> str:
        if not is_key(identity) or clients.find(identity) is not None:
            return ""
        return "its key was taken out of the device's list of clients"

    return judge
