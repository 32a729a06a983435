"""The pool's thread: it starts servers and children, delivers results and enforces deadlines.

Only this thread touches the state; other threads queue functions for it.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tapml.isolate.death import DeathReport
from tapml.isolate.endpoints import START_SECONDS, Call, Child, Owner, Server, to_error
from tapml.isolate.environment import Environment
from tapml.isolate.frame import Channel, encode
from tapml.isolate.member import Member
from tapml_targets.errors import InputError, ProtocolError, SetupError, TapmlError

_CLOSED: Final = DeathReport("", closed=True)


class Dispatcher:
    """The pool's thread, started by the first action; it runs at most `workers` jobs at a time."""

    def __init__(self, jobs: Sequence[str], workers: int) -> None:
        self._jobs = jobs
        self._workers = workers
        self._servers: list[Server] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._waiting: deque[tuple[Environment, Call]] = deque()
        self._running = 0
        self._count = 0
        self._lock = threading.Lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def do(self, action: Callable[[], None]) -> None:
        """Queue a function for the thread. Raises InputError if the pool is closed."""
        with self._lock:
            if self._closed:
                raise InputError("the pool is closed")
            self._actions.append(action)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tapml-pool", daemon=True)
                self._thread.start()
            with contextlib.suppress(BlockingIOError):
                self._waker.send(b"\0")

    def close(self) -> None:
        """Kill every process and fail pending calls. Closing twice does nothing."""
        with self._lock:
            thread, self._closed = self._thread, True
            with contextlib.suppress(OSError):
                self._waker.send(b"\0")
        if thread is None:
            self._end_all()
        elif thread is not threading.current_thread():
            thread.join()

    # The methods below run on the thread.

    def submit(self, environment: Environment, call: Call) -> None:
        """Run a call in a new child once fewer than `workers` jobs are running."""
        self._waiting.append((environment, call))

    def warm_up(self, environment: Environment) -> Server:
        """The environment's server, started if needed. Raises SetupError if it cannot start."""
        for server in self._servers:
            if server.environment == environment:
                return server
        try:
            server = Server(environment, self._jobs)
        except (OSError, ImportError, ValueError) as error:
            raise SetupError(f"no process can be started: {error}") from error
        self._servers.append(server)
        self._selector.register(
            server.channel, selectors.EVENT_READ, lambda: self._read_server(server)
        )
        return server

    def start(self, environment: Environment, owner: Owner, member: Member | None = None) -> Child:
        """Start a child that waits for calls. Raises SetupError if that fails."""
        server = self.warm_up(environment)
        self._count += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SetupError(f"no process can be started: {error}") from error
        child = Child(self._count, server, Channel(ours), owner, member.folder if member else "")
        request = {"fork": child.number, "member": None if member is None else vars(member)}
        with theirs, contextlib.suppress(BrokenPipeError):
            server.channel.send(encode(request), [theirs.fileno()])
        server.children[child.number] = child
        self._selector.register(
            child.channel, selectors.EVENT_READ, lambda: self._read_child(child)
        )
        return child

    def send(
        self, child: Child, call: Call, message: tuple[bytes, Sequence[int]] | None = None
    ) -> None:
        """Send a call to an idle child. Its deadline starts now, or when the child has started.

        Raises SetupError if no memory or descriptor is left for the payload.
        """
        child.call = call
        if child.pid:
            child.end_at = time.monotonic() + call.seconds
        if child.channel.closed:
            return  # The child is exiting; the server will report how.
        try:
            if message is not None:
                child.channel.send_sealed(*message)
            else:
                child.channel.send(call.parts)
        except ConnectionError:
            return  # The child is dead; the server will report how.
        except OSError as error:
            child.call = None
            self.kill(child)
            raise SetupError(f"the payload of {call.job!r} cannot be sent: {error}") from error

    def kill(self, child: Child) -> None:
        """Kill a child and the processes it started. Its owner is notified when it has exited."""
        child.killed_by_pool = True
        if child.number in child.server.children and not child.server.channel.closed:
            with contextlib.suppress(ConnectionError):
                child.server.channel.send(encode({"kill": child.number}))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run a function after a delay."""
        self._timers.append((time.monotonic() + seconds, action))

    def job_ended(self) -> None:
        """Make room for the next job."""
        self._running -= 1

    def _run(self) -> None:
        try:
            while not self._closed or self._actions:
                while self._actions:
                    self._actions.popleft()()
                if self._closed:
                    continue  # What woke the thread for it may have been read already.
                self._start_waiting()
                for key, _ in self._selector.select(self._select_timeout()):
                    key.data()
                self._kill_overdue()
        finally:
            self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            self._closed = True
        for server in list(self._servers):
            self._close_server(server, _CLOSED)
        while self._waiting:
            self._waiting.popleft()[1].fail(_CLOSED)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _wake(self) -> None:
        self._woken.recv(1 << 12)

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self._workers:
            environment, call = self._waiting.popleft()
            try:
                child = self.start(environment, _JobOwner(self))
                self._running += 1
                self.send(child, call)
            except TapmlError as error:
                call.future.set_exception(error)

    def _select_timeout(self) -> float | None:
        ends = [child.end_at for server in self._servers for child in server.children.values()]
        ends += [server.end_at for server in self._servers if not server.ready]
        ends += [at for at, _ in self._timers]
        end_at = min(ends, default=math.inf)
        return None if end_at == math.inf else max(0.0, end_at - time.monotonic())

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer not in due]
        for _, action in due:
            action()
        for server in [s for s in self._servers if s.end_at <= now and not s.ready]:
            self._close_server(server, DeathReport("", deadline_seconds=START_SECONDS))
        for server in list(self._servers):
            for child in [c for c in server.children.values() if c.end_at <= now]:
                # Its answer may have just arrived.
                self._read_child(child)
                if child.call is not None and child.end_at <= now:
                    child.missed_seconds, child.end_at = child.call.seconds, math.inf
                    self.kill(child)

    def _read_server(self, server: Server) -> None:
        if server not in self._servers:
            return
        try:
            for message, _ in server.channel.receive(wait=False):
                self._handle_server_message(server, message)
        except EOFError:
            self._close_server(server)
        except ProtocolError as error:
            self._close_server(server, why=str(error))

    def _handle_server_message(self, server: Server, message: dict[str, Any]) -> None:
        if "ready" in message:
            server.ready = True
            return
        child = server.children[message["number"]]
        if "pid" in message:
            child.pid = message["pid"]
            if child.call is not None:
                child.end_at = time.monotonic() + child.call.seconds
            return
        self._end(child, DeathReport.of_exit(message["exit"], message["tail"]))

    def _read_child(self, child: Child) -> bool:
        """Deliver what a child has sent; True if there may be more."""
        if child.number not in child.server.children or child.channel.closed:
            return False
        try:
            received = child.channel.receive(wait=False)
            for answer, _ in received:
                if not isinstance(answer, dict) or not answer.keys() & {"result", "message"}:
                    raise ProtocolError("an answer has neither a result nor an error message")
                self._deliver(child, answer)
        except EOFError:
            self._close_channel(child)
            child.owner.on_disconnect(child)
            return False
        except ProtocolError as error:
            # The job wrote to the socket.
            self._close_channel(child)
            self._deliver(child, {"error": type(error).__name__, "message": str(error)})
            self.kill(child)
            return False
        return bool(received)

    def _deliver(self, child: Child, answer: dict[str, Any]) -> None:
        call, child.call, child.end_at = child.call, None, math.inf
        if call is not None:
            child.owner.on_answer(child, call, answer)

    def _close_channel(self, child: Child) -> None:
        if not child.channel.closed:
            self._selector.unregister(child.channel)
            child.channel.close()

    def _end(self, child: Child, report: DeathReport) -> None:
        while self._read_child(child):  # It may have answered before it exited.
            pass
        self._close_channel(child)
        del child.server.children[child.number]
        if child.missed_seconds:
            report = replace(report, deadline_seconds=child.missed_seconds)
        child.owner.on_exit(child, report)

    def _close_server(
        self, server: Server, report: DeathReport | None = None, why: str = ""
    ) -> None:
        self._servers.remove(server)
        self._selector.unregister(server.channel)
        found = server.close()
        printed = "\n".join(filter(None, (why, found.stderr_tail)))
        found = replace(report or found, stderr_tail=printed)
        for child in server.children.values():
            child.killed_by_pool = True
        for child in list(server.children.values()):
            self._end(child, found)
        if not server.ready:
            # Another server for this environment would fail the same way.
            lost = [each for each in self._waiting if each[0] == server.environment]
            self._waiting = deque(each for each in self._waiting if each not in lost)
            for _, call in lost:
                call.fail(found)


@dataclass(eq=False)
class _JobOwner(Owner):
    dispatcher: Dispatcher
    failed: tuple[Call, TapmlError] | None = None

    def on_answer(self, child: Child, call: Call, answer: dict[str, Any]) -> None:
        if "result" in answer:
            call.future.set_result(answer["result"])
        else:
            self.failed = call, to_error(answer)
        self.dispatcher.kill(child)

    def on_exit(self, child: Child, report: DeathReport) -> None:
        self.dispatcher.job_ended()
        if self.failed is not None:
            call, error = self.failed
            if report.stderr_tail:
                error.add_note(report.stderr_tail)
            call.future.set_exception(error)
        elif child.call is not None:
            child.call.fail(report)
