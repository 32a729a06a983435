"""A session's client side: batches out, answers in, credits both ways.

The same over both bindings, each of which opens the two connections. The caller's thread owns the
data connection, so that an answer reaches it without another thread in between;
:mod:`tapml_rpc.watch` has the control connection.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from tapml_rpc import wire
from tapml_rpc.failures import render_command
from tapml_rpc.transport import DataConnection, EndedError, PendingResults, Ticket, Unanswered
from tapml_rpc.watch import Describe, Watch
from tapml_rpc.welcome import Welcome
from tapml_targets.errors import DeviceLostError, InputError, SetupError, TapmlError

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


_CREDIT_BYTES: Final = 4 << 20
_POLL_MILLISECONDS: Final = 50
_LAST_COMMANDS: Final = 5
_FIRST_SECONDS: Final = 5.0


class Link:
    """The :class:`tapml_rpc.transport.Transport` to a server, over two open connections.

    It owns `data`, which asks `unanswered` where to put chunks if it receives them in place.
    `watch` starts to watch the control connection, given a function that adds to the message of a
    loss. `lease` is the lease the session is used under, if known. `on_closed` is called once both
    connections are closed. Raises SetupError if the data connection ends before it is used.
    """

    def __init__(
        self,
        address: str,
        welcome: Welcome,
        data: DataConnection,
        unanswered: Unanswered,
        watch: Callable[[Describe], Watch],
        *,
        lease: Held | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self.closed = False
        self.version = welcome.version
        self.features = welcome.features
        self.device = welcome.device
        self.bounds = welcome.bounds
        self.epoch = welcome.epoch
        self.token = welcome.token
        self._data = data
        self._unanswered = unanswered
        self._lease = lease
        self._on_closed = on_closed
        self._owner = os.getpid()
        self._busy = False
        self._uncredited = 0
        self._last_commands: deque[object] = deque(maxlen=_LAST_COMMANDS)
        self._say_whose_it_is()
        self._watch = watch(self._describe)

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
    ) -> Ticket:
        """Send a batch; see :class:`tapml_rpc.transport.Transport`."""
        ticket = self._post({"type": "batch", "commands": commands}, chunk, pending or {})
        self._last_commands.extend(commands[-_LAST_COMMANDS:])
        return ticket

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Send a message other than a batch; see :class:`tapml_rpc.transport.Transport`."""
        return self._post(fields, chunk, {})

    def wait(self, ticket: Ticket) -> None:
        """Wait for a batch's answer; raises DeviceLostError if the server is gone."""
        while not ticket.done:
            self._receive()

    def drain(self) -> bool:
        """Take the answers that are there; True when no batch is under way."""
        while self._unanswered and self._take(0):
            pass
        return not self._unanswered

    @property
    def pong(self) -> wire.Header:
        """The server's last answer to a ping: its state, and the totals of its sessions."""
        return self._watch.pong

    def cancel(self) -> None:
        """Ask the server not to run the batches sent so far; a running kernel is not stopped."""
        self._check()
        self._watch.post({"type": "cancel", "sequence": self._unanswered.sequence})

    def close(self) -> None:
        """Send a goodbye and close both connections. Never raises and never waits long."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() != self._owner:
            # A forked child has neither the sockets' threads nor the right to say goodbye.
            return
        if self._watch.lost is None and not (self._busy or self._data.torn):
            goodbye = {"type": "goodbye", "session": self.token, "epoch": self.epoch}
            self._data.close(wire.pack(goodbye))
        else:
            self._data.abort()
        if self._watch.close():
            self._on_closed()

    def _post(
        self, fields: wire.Header, chunk: memoryview | bytes, pending: PendingResults
    ) -> Ticket:
        self._check()
        chunk_bytes = len(chunk)
        wire.check_chunk(chunk_bytes)
        unanswered, bounds = self._unanswered, self.bounds
        while (
            unanswered.upload_bytes + chunk_bytes > bounds.upload_window
            or len(unanswered) >= bounds.unanswered
        ):
            self._receive()
        ticket = unanswered.next(chunk_bytes, pending)
        own = {"session": self.token, "epoch": self.epoch, "sequence": ticket.sequence}
        packed = wire.pack({**fields, **own})
        unanswered.add(ticket)
        self._send(packed, chunk)
        return ticket

    def _say_whose_it_is(self) -> None:
        """Identify the session: a server does not wait long for a first message, nor do we."""
        deadline = time.monotonic() + _FIRST_SECONDS

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the server takes nothing")

        try:
            self._data.send(self._credit(0), check=check)
        except EndedError as error:
            raise SetupError(f"the server's data connection does not last: {error}") from None

    def _check(self) -> None:
        if self.closed:
            raise InputError("this session is closed; open a new one")
        if os.getpid() != self._owner:
            raise InputError("this session belongs to the process that forked this one")
        self._check_watch()
        if self._busy or self._data.torn:
            raise DeviceLostError(
                "the connection was interrupted in the middle of a message; open a new session"
            )

    def _check_watch(self) -> None:
        if self._watch.lost is not None:
            raise self._watch.lost.with_traceback(None)

    def _send(self, packed: bytes, chunk: memoryview | bytes = b"") -> None:
        try:
            self._data.send(packed, chunk, self._check_watch)
        except EndedError as error:
            raise self._watch.cause(error).with_traceback(None) from None

    def _receive(self) -> None:
        """Wait for one message, or for the end of the connection."""
        if not self._take(_POLL_MILLISECONDS):
            self._check_watch()

    def _take(self, wait_milliseconds: int) -> bool:
        """Take a message; False if none has come in time."""
        if self._busy or self._data.torn or self.closed:
            self._check()
        try:
            message = self._data.receive(wait_milliseconds)
        except EndedError as error:
            raise self._watch.cause(error).with_traceback(None) from None
        if message is None:
            return False
        # What an exception such as Ctrl-C interrupts here may be half counted.
        self._busy = True
        brought, failure = self._unanswered.take(*message, copy=self._data.memory_is_reused)
        self._uncredited += brought
        if self._uncredited >= _CREDIT_BYTES:
            credit, self._uncredited = self._uncredited, 0
            self._send(self._credit(credit))
        self._busy = False
        if isinstance(failure, DeviceLostError):
            raise self._watch.lose(failure)
        if failure is not None:
            raise failure
        return True

    def _credit(self, nbytes: int) -> bytes:
        return wire.pack(
            {"type": "credit", "session": self.token, "epoch": self.epoch, "bytes": nbytes}
        )

    def _describe(self, error: TapmlError) -> TapmlError:
        return told_with(error, self._lease, list(self._last_commands) if self._unanswered else ())
