"""A campaign: invalid conversations one after the other, and checks of all invariants."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.wire_fuzz.bindings import (
    SERVE_OPTIONS,
    address_of,
    keys_of,
    open_binding,
    throw_garbage,
)
from scripts.wire_fuzz.good_client import Experience, GoodClient
from scripts.wire_fuzz.messages import Names, Shot
from scripts.wire_fuzz.mutations import shots
from scripts.wire_fuzz.peer import Heard, NoAnswerError, Peer, Wire
from scripts.wire_fuzz.server import ServerUnderTest, Weight
from tapml_rpc.supervisor.worker_process import KEPT_SECONDS

SESSION_BYTES: Final = 64 << 20
# Memory at most: the quotas of the fuzzer's sessions, one of them just ended, and a worker's own
# for each of the sessions that hellos may take.
PEAK_BYTES: Final = 4 * SESSION_BYTES + 32 * (64 << 20)
LASTING_BYTES: Final = 96 << 20
# Blobs stay with the server, each behind a descriptor; the fuzzer has four.
LASTING_DESCRIPTORS: Final = 8
WORST_SECONDS: Final = 5.0
_CONVERSATIONS_PER_SESSION: Final = 200
# The scout says nothing during a conversation, and a machine with other work takes long over some.
_SILENCE_SECONDS: Final = 600
# The worker of a client with a key waits so long for its next session.
_SETTLE_SECONDS: Final = 20 + KEPT_SECONDS
_REST_SECONDS: Final = 0.7
_REST_BYTES: Final = 2 << 20
_SPARE_SECONDS: Final = 3.0
_SAMPLE_FRAMES: Final = 5000


@dataclass(frozen=True)
class Settings:
    """What to fuzz.

    Attributes
    ----------
    frames
        At least so many are sent.
    binding
        A name of :data:`scripts.wire_fuzz.bindings.BINDINGS`.
    session
        Whether the liar has a valid session, or none.
    device
        As ``--device`` takes it.
    """

    frames: int
    seed: int
    binding: str = "zmq"
    session: bool = False
    device: str = "opencl"


@dataclass
class Finding:
    """A violated invariant.

    Attributes
    ----------
    what
        What was seen.
    first, last
        The conversations of the session in which it was seen; -1 where it belongs to none.
    """

    what: str
    first: int = -1
    last: int = -1


@dataclass
class Report:
    """The results of a campaign.

    `growth` has samples over the run: frames so far, resident bytes of the server's own process,
    and of its workers.
    """

    settings: Settings
    seconds: float = 0.0
    frames: int = 0
    conversations: int = 0
    sessions: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    heard: Heard = field(default_factory=Heard)
    good: Experience = field(default_factory=Experience)
    before: Weight = field(default_factory=lambda: Weight(0, 0, 0))
    after: Weight = field(default_factory=lambda: Weight(0, 0, 0))
    peak_bytes: int = 0
    growth: list[tuple[int, int, int]] = field(default_factory=list)
    sessions_left: int = 0
    device_bytes_left: int = 0
    findings: list[Finding] = field(default_factory=list)


class Campaign:
    """Runs against one server.

    Parameters
    ----------
    progress
        Called now and then with the frames sent so far.
    """

    def __init__(
        self, settings: Settings, progress: Callable[[int], None] = lambda frames: None
    ) -> None:
        self.report = Report(settings)
        self._settings = settings
        self._progress = progress
        self._faults: set[str] = set()
        self._logged = 0

    def run(self) -> Report:
        """Everything, from the server's start to its end."""
        report, settings = self.report, self._settings
        started = time.monotonic()
        with ExitStack() as stack:
            server, open_wire, environ = stack.enter_context(serving(settings))
            address = address_of(settings.binding, server.line)
            # The first session loads things that stay in the server, such as kernels.
            GoodClient(address, environ).end()
            scout = Peer(open_wire, Heard())
            scout.settle()
            _await_empty(scout)
            # A spare worker starts a second after the last one was taken.
            time.sleep(_SPARE_SECONDS)
            report.before = _at_rest(server)
            good = GoodClient(address, environ)
            try:
                with ExitStack() as victims:
                    self._fuzz(server, open_wire, good, address, scout, victims)
            finally:
                report.good = good.end()
            if server.process.poll() is None:
                self._look_after(server, scout)
        self._judge()
        report.seconds = time.monotonic() - started
        return report

    def _fuzz(
        self,
        server: ServerUnderTest,
        open_wire: Callable[[], Wire],
        good: GoodClient,
        address: str,
        scout: Peer,
        victims: ExitStack,
    ) -> None:
        report, settings = self.report, self._settings
        rng = random.Random(f"{settings.seed}:garbage")  # noqa: S311 - repeatable, no secret
        index = 0
        victim: Peer | None = None
        while report.frames < settings.frames and not good.ended:
            first = index
            try:
                with ExitStack() as stack:
                    if victim is None or not victim.settle():
                        victim = Peer(open_wire, Heard())
                        victims.callback(victim.close)
                    peer = open_peer(
                        stack, open_wire, report.heard, scout, victim, settings.session
                    )
                    report.sessions += 1
                    while index < first + _CONVERSATIONS_PER_SESSION:
                        index += 1
                        self._say(peer, index - 1, blobs=True)
                        if not peer.settle() and (settings.session or peer.closed):
                            break
            except NoAnswerError as error:
                status = server.process.poll()
                what = f"the server ended with {status}" if status is not None else str(error)
                report.findings.append(Finding(what, first, index - 1))
                return
            self._look(server, first, index - 1)
            report.sent["random bytes on a plain connection"] += 1
            throw_garbage(rng, address, scout.data_address)
            scout.ask()
            self._progress(report.frames)
        report.conversations = index

    def _say(self, peer: Peer, index: int, *, blobs: bool) -> None:
        report = self.report
        for shot in shots(self._settings.seed, index, blobs=blobs):
            peer.send(shot)
            report.frames += len(shot.frames)
            report.sent[shot.what] += len(shot.frames)

    def _look(self, server: ServerUnderTest, first: int, index: int) -> None:
        report = self.report
        weight = server.weigh()
        report.peak_bytes = max(report.peak_bytes, weight.resident_bytes)
        if report.frames >= (report.growth[-1][0] if report.growth else 0) + _SAMPLE_FRAMES:
            own = server.own_bytes()
            report.growth.append((report.frames, own, weight.resident_bytes - own))
        for fault in report.heard.faults.keys() - self._faults:
            self._faults.add(fault)
            report.findings.append(Finding(f"a fault of the server's own: {fault}", first, index))
        log = server.log()
        said = log[self._logged :]
        last = said.strip().rpartition("\n")[2]
        if "Traceback" in said and last not in self._faults:
            self._faults.add(last)
            report.findings.append(Finding(f"it logged: {said[-1500:]}", first, index))
        self._logged = len(log)

    def _look_after(self, server: ServerUnderTest, scout: Peer) -> None:
        report = self.report
        try:
            pong = _await_empty(scout)
        except NoAnswerError as error:
            report.findings.append(Finding(f"when all was over: {error}"))
            return
        report.sessions_left = pong["sessions"] - 1
        report.device_bytes_left = pong["device_bytes"]
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            report.after = server.weigh()
            # A worker that ends takes its time.
            if (
                report.after.descriptors <= report.before.descriptors + LASTING_DESCRIPTORS
                and report.after.processes <= report.before.processes
            ):
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _judge(self) -> None:
        report = self.report
        before, after, good = report.before, report.after, report.good
        wrong = {
            f"the good client saw an error: {good.error}": bool(good.error),
            f"the good client waited {good.worst_seconds:.1f} s": (
                good.worst_seconds > WORST_SECONDS
            ),
            "the good client did nothing": not good.operations,
            "the server grew beyond its quota": (
                report.peak_bytes > before.resident_bytes + PEAK_BYTES
            ),
            "the server keeps memory": (
                after.resident_bytes > before.resident_bytes + LASTING_BYTES
            ),
            "the server keeps file descriptors": (
                after.descriptors > before.descriptors + LASTING_DESCRIPTORS
            ),
            "the server keeps processes": after.processes > before.processes,
            "the server keeps sessions": report.sessions_left > 0,
            "the server keeps device memory": report.device_bytes_left > 0,
        }
        report.findings += [Finding(what) for what, seen in wrong.items() if seen]


@contextmanager
def serving(
    settings: Settings,
) -> Iterator[tuple[ServerUnderTest, Callable[[], Wire], Mapping[str, str]]]:
    """The server under test, with a quota that a fuzzer can reach.

    Also yields what connects the control socket to it, and a client's variables.
    """
    binding = settings.binding
    with keys_of(binding) as keys:
        options = (*SERVE_OPTIONS[binding], *(() if keys is None else keys.options))
        options += ("--session-bytes", str(SESSION_BYTES), "--silence", str(_SILENCE_SECONDS))
        with (
            ServerUnderTest(settings.device, *options) as server,
            open_binding(binding, server.line, keys) as open_wire,
        ):
            yield server, open_wire, {} if keys is None else keys.environ


def open_peer(
    stack: ExitStack,
    open_wire: Callable[[], Wire],
    heard: Heard,
    scout: Peer,
    victim: Peer,
    session: bool,
) -> Peer:
    """A fuzzing peer with its own session, or without one; it knows the victim's token."""
    peer = Peer(open_wire, heard, data_address=None if session else scout.data_address)
    stack.callback(peer.close)
    own = peer.names if session else Names()
    peer.names = Names(own.token, victim.names.token, scout.names.epoch, own.sequence)
    return peer


def replay(settings: Settings, said: list[Shot], heard: Heard) -> str:
    """Send frames to a fresh server; return the failure, or ""."""
    with ExitStack() as stack:
        server, open_wire, _ = stack.enter_context(serving(settings))
        scout = Peer(open_wire, Heard())
        victim = Peer(open_wire, Heard())
        peer = open_peer(stack, open_wire, heard, scout, victim, settings.session)
        try:
            # Wait for its worker, so that answers keep up with requests.
            if not peer.settle() and settings.session:
                return f"the session ended before anything was sent: {heard.last_error}"
            for shot in said:
                peer.send(shot)
            peer.settle()
        except NoAnswerError as error:
            status = server.process.poll()
            return f"the server ended with {status}" if status is not None else str(error)
        if heard.faults:
            return f"a fault of the server's own: {next(iter(heard.faults))}"
        return "it logged a traceback" if "Traceback" in server.log() else ""


def _at_rest(server: ServerUnderTest) -> Weight:
    """Its weight once it has stopped growing: a spare worker opens its device in the background."""
    weight = server.weigh()
    while True:
        time.sleep(_REST_SECONDS)
        later = server.weigh()
        if later.resident_bytes < weight.resident_bytes + _REST_BYTES:
            return later
        weight = later


def _await_empty(scout: Peer) -> dict[str, Any]:
    """The first pong that reports only the scout's session, or the last one before the timeout."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        pong = scout.ask()
        empty = pong["sessions"] == 1 and not pong["device_bytes"]
        if empty or time.monotonic() > deadline:
            return pong
        time.sleep(0.1)
