"""The fuzzer's interface to a binding, and its peers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from scripts.wire_fuzz.conversations import HELLO
from scripts.wire_fuzz.messages import Names, Shot, Socket
from tapml_rpc import wire
from tapml_targets.errors import ProtocolError

# Long enough for a session's first worker on a busy machine; the good client keeps the short time.
PATIENCE_SECONDS: Final = 20.0
_AGAIN_SECONDS: Final = 1.0
_CREDIT: Final = 64 << 20
# Python errors that only an internal fault of the server raises.
_OWN_FAULTS: Final = (
    "TypeError", "KeyError", "AttributeError", "IndexError", "ValueError", "AssertionError",
    "OverflowError", "UnboundLocalError", "ZeroDivisionError", "RecursionError", "BufferError",
    "UnicodeDecodeError", "UnicodeEncodeError", "struct.error", "error", "RuntimeError",
    "NameError", "OSError", "ZMQError",
)  # fmt: skip


class Wire(Protocol):
    """A session's two raw connections in one binding, without tapml's client.

    Attributes
    ----------
    closed
        Whether the server has ended a connection, and the session with it.
    """

    closed: bool

    def send(self, socket: Socket, frames: tuple[bytes, ...]) -> bool:
        """Send one message unchanged; False if it is not accepted in time."""

    def receive(self, seconds: float) -> list[tuple[Socket, bytes]]:
        """The headers that came, packed; waits up to `seconds` for the first."""

    def open_data(self, address: str) -> None:
        """Connect the data socket to the address that a welcome named."""

    def close(self) -> None:
        """Drop both connections without a goodbye."""


class NoAnswerError(Exception):
    """The server runs and does not answer."""


@dataclass
class Heard:
    """Counts of the server's answers.

    Attributes
    ----------
    answers
        By type of message.
    refusals
        By kind of error.
    faults
        Errors that are the server's own fault, with how often each came.
    last_error
        The latest refusal's kind and message.
    """

    answers: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    last_error: str = ""

    def note(self, header: dict[str, Any]) -> None:
        """Count a message."""
        self.answers[str(header.get("type"))] += 1
        error = header.get("error")
        if not isinstance(error, dict):
            return
        kind, message = str(error.get("kind")), str(error.get("message"))
        self.refusals[kind] += 1
        self.last_error = f"{kind}: {message[:300]}"
        if kind == "RemoteError" and message.partition(":")[0] in _OWN_FAULTS:
            self.faults[message[:160]] += 1


class Peer:
    """One session of the fuzzer, or a stranger without one.

    Parameters
    ----------
    open_wire
        Connects the control socket.
    heard
        Counts the server's answers.
    data_address
        For a stranger: where the data socket is.
    """

    def __init__(
        self, open_wire: Callable[[], Wire], heard: Heard, *, data_address: str | None = None
    ) -> None:
        self.names = Names()
        self.features: frozenset[str] = frozenset()
        self._heard = heard
        self._wire = open_wire()
        self._sequence = 0
        self._session = data_address is None
        try:
            self.data_address = data_address or self._hello()
            self._wire.open_data(self.data_address)
        except BaseException:
            self._wire.close()
            raise

    def close(self) -> None:
        """Drop the connections."""
        self._wire.close()

    @property
    def closed(self) -> bool:
        """Whether the server has ended a connection of this peer."""
        return self._wire.closed

    def send(self, shot: Shot) -> None:
        """Send one message of a conversation."""
        frames = tuple(self.names.put_into(frame) for frame in shot.frames)
        if not self._wire.send(shot.socket, frames):
            raise NoAnswerError("the server takes no more messages")
        self._hear(0)

    def settle(self) -> bool:
        """Wait until everything sent is processed; False if the session is over.

        Raises
        ------
        NoAnswerError
            If the server does not answer.
        """
        self._sequence += 1 << 20
        asked: set[int] = set()
        waited: set[Socket] = {"control", "data"}
        alive = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waited:
            # Repeat under another number: a broken connection loses the question.
            self._sequence += 1
            asked.add(self._sequence)
            self._ask_all(waited)
            again = time.monotonic() + _AGAIN_SECONDS
            while waited and time.monotonic() < again:
                if self.closed:
                    return False
                for socket, header in self._hear(0.05):
                    verdict = _about(header, asked)
                    if verdict is not None and socket in waited:
                        waited.discard(socket)
                        alive = alive and verdict
            if waited and time.monotonic() > deadline:
                raise NoAnswerError(f"no answer on {', '.join(waited)} for {PATIENCE_SECONDS} s")
        self.names = replace(self.names, sequence=self._sequence + 1)
        return alive and self._session

    def _ask_all(self, sockets: set[Socket]) -> None:
        own = {"session": self.names.token, "epoch": self.names.epoch}
        if "control" in sockets:
            ping = {"type": "ping", "sequence": self._sequence, **own}
            self._wire.send("control", (wire.pack(ping),))
        if "data" in sockets:
            # A read may wait for credit, and everything behind it with it.
            self._wire.send("data", (wire.pack({"type": "credit", "bytes": _CREDIT, **own}),))
            commands = [["reset"], ["fence"]]
            batch = {"type": "batch", "sequence": self._sequence, "commands": commands, **own}
            self._wire.send("data", (wire.pack(batch),))

    def ask(self) -> dict[str, Any]:
        """The server's answer to a ping."""
        self._sequence += 1
        ping = {"type": "ping", "session": self.names.token, "sequence": self._sequence}
        return self._await("pong", again=wire.pack(ping))

    def _hello(self) -> str:
        # The previous peer may have taken all sessions, and the server may still notice its end.
        # A hello that waits for a worker is not repeated: a connection's second one ends the
        # session of the first.
        welcome = self._await("welcome", again=wire.pack(dict(HELLO)), only_refused=True)
        token, epoch = welcome["session"], welcome["epoch"]
        self.names = Names(token=token, epoch=epoch)
        self.features = frozenset(welcome["features"])
        return str(welcome["data_address"])

    def _await(self, kind: str, again: bytes, *, only_refused: bool = False) -> dict[str, Any]:
        """Say `again` until an answer of a kind comes; with `only_refused`, after a refusal."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        said, next_time = "", 0.0
        while time.monotonic() < deadline:
            if time.monotonic() >= next_time:
                next_time = deadline if only_refused else time.monotonic() + _AGAIN_SECONDS
                self._wire.send("control", (again,))
            for _, header in self._hear(0.1):
                if header.get("type") == kind:
                    return header
                if "error" in header:
                    said = str(header["error"])
                    next_time = min(next_time, time.monotonic() + _AGAIN_SECONDS)
        raise NoAnswerError(f"no {kind} for {PATIENCE_SECONDS} s; {said[:300]}")

    def _hear(self, seconds: float) -> list[tuple[Socket, dict[str, Any]]]:
        headers: list[tuple[Socket, dict[str, Any]]] = []
        for socket, packed in self._wire.receive(seconds):
            try:
                header = wire.unpack(packed)
            except ProtocolError as error:
                self._heard.faults[f"an answer that is no header: {error}"[:160]] += 1
                continue
            self._heard.note(header)
            headers.append((socket, header))
        return headers


def _about(header: dict[str, Any], asked: set[int]) -> bool | None:
    """Whether a message shows that the session is alive (True) or over (False); None: neither."""
    kind = header.get("type")
    if kind == "refused":
        message = str(header.get("error", {}).get("message"))
        return False if "session" in message else None
    sequence = header.get("sequence")
    if type(sequence) is not int or sequence not in asked:
        return None
    if kind == "done":
        # Cancelling all sequence numbers makes a session useless.
        return "error" not in header
    return kind == "pong" if kind in ("pong", "error") else None
