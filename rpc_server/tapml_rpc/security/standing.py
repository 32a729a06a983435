"""Whether those who were let in may stay, and how often one of them may come.

A key or a token is looked at when a connection opens. What is taken out of a list afterwards is
noticed here: its sessions are ended, and on connections that are still open no other one begins.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.failure_limit import FailureLimit
from tapml_rpc.security.keys import is_key
from tapml_targets.errors import SetupError, TapmlError

LOOPBACK_IDENTITY: Final = "loopback"
"""Of everybody who came without a secret."""
LEASE_IDENTITY: Final = "lease:"
"""How the identity of whoever came with a lease's token begins; the holder's follows."""
HELLOS: Final = 240
HELLO_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5

Judge: TypeAlias = Callable[[str], str]
"""Why an identity may not stay; empty where it may, or is none of this judge's."""
Sessions: TypeAlias = Callable[[], Iterable[tuple[str, Callable[[str], None]]]]
"""Whose each open session is, and what ends it; its argument is the reason."""


class Standing:
    """Watches over the identities of a server's sessions. From any thread.

    Parameters
    ----------
    sessions
        Those that are open.
    limit
        How many hellos of one identity are answered; 240 a minute where None.
    seconds
        Between two looks.
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
        """Have a list looked at from now on."""
        self._judges.append(judge)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tapml-standing", daemon=True)
            self._thread.start()

    def greet(self, identity: str) -> None:
        """Count a hello.

        Raises
        ------
        SetupError
            If there have been too many, or the identity was taken out of its list; also where the
            list cannot be read.
        """
        if identity == LOOPBACK_IDENTITY:
            # Everybody on this machine: nobody's count.
            return
        with self._lock:
            waiting = self._limit.note(identity)
        if waiting:
            raise SetupError(
                "this client has said hello too often within a minute; the next one is listened "
                f"to in {waiting:.0f} s. Keep a session open instead of opening one for each task"
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
        """Stop looking."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """End the sessions of those who were found without standing twice in a row."""
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
            # Nobody new comes in. Those inside are asked again when it can be read.
            self._say(error)
            return ""

    def _why(self, identity: str) -> str:
        return next(filter(None, (judge(identity) for judge in self._judges)), "")

    def _say(self, error: TapmlError) -> None:
        """Tell the operator, once for each fault."""
        if self._said != str(error):
            self._said = str(error)
            print(
                f"tapml rpc: nobody comes in and open sessions stay until this is mended: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()


def listed_key(clients: AllowList) -> Judge:
    """The judge of keys: those that are in the list may stay."""

    def judge(identity: str) -> str:
        if not is_key(identity) or clients.find(identity) is not None:
            return ""
        return "its key was taken out of the device's list of clients"

    return judge
