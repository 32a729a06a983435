"""Processes that start and end together, such as the ranks of a distributed job."""

from __future__ import annotations

import socket
import tempfile
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from tapml.isolate.death import ChildDiedError, DeathReport, GroupDiedError, GroupReport
from tapml.isolate.dispatch import Dispatcher
from tapml.isolate.endpoints import Call, Child, Owner, to_error
from tapml.isolate.environment import Environment
from tapml.isolate.frame import sealed
from tapml.isolate.member import Member
from tapml_targets.errors import SetupError, TapmlError

_LOOPBACK: Final = "127.0.0.1"
# If a member dies, the error that its peer raises may arrive before the report of its death.
_SETTLE_SECONDS: Final = 0.5


class Group(Owner):
    """Runs one call in every member; the call's future gets the list of results by rank."""

    def __init__(self, dispatcher: Dispatcher, size: int, call: Call) -> None:
        self._dispatcher = dispatcher
        self._size = size
        self._call = call
        self._ranks: dict[Child, int] = {}
        self._results: dict[int, Any] = {}
        self._errors: dict[int, TapmlError] = {}  # By rank, in order of arrival.
        self._tails = [""] * size
        self._left = size
        self._failed = False
        self._missed_seconds = 0.0
        self._culprit: int | None = None
        self._error: TapmlError | None = None
        self._death: DeathReport | None = None

    def start(self, environment: Environment, *, port: bool, folder: bool) -> None:
        """Start all members or none."""
        try:
            self._dispatcher.warm_up(environment)
            # The server removes the folder when the last member has exited.
            path = tempfile.mkdtemp(prefix="tapml-group-") if folder else ""
            member = Member(0, self._size, _free_port() if port else 0, path)
            for rank in range(self._size):
                child = self._dispatcher.start(environment, self, replace(member, rank=rank))
                self._ranks[child] = rank
            with sealed(self._call.parts) as message:
                for child in self._ranks:
                    self._dispatcher.send(child, self._call, message)
        except (OSError, TapmlError) as error:
            self._left = len(self._ranks)
            self._error, self._failed = SetupError(f"cannot start all members: {error}"), True
            self._end_all()

    def on_answer(self, child: Child, call: Call, answer: dict[str, Any]) -> None:
        """Keep the result or error; the member stays alive for the others."""
        del call
        if "result" in answer:
            self._results[self._ranks[child]] = answer["result"]
            if len(self._results) == self._size:
                self._end_all()
        elif not self._failed:
            self._errors.setdefault(self._ranks[child], to_error(answer))
            if len(self._errors) == 1:
                self._dispatcher.call_later(_SETTLE_SECONDS, self._fail_by_error)
        if len(self._errors) + len(self._results) == self._size:
            self._fail_by_error()

    def on_disconnect(self, child: Child) -> None:
        """Fail the group unless it is ending already."""
        if self._failed or len(self._results) == self._size:
            return
        self._missed_seconds = child.missed_seconds
        if child.killed_by_pool and self._errors:
            self._fail_by_error()
            return
        self._failed = True
        if not child.killed_by_pool:
            self._culprit = self._ranks[child]
        self._end_all()

    def on_exit(self, child: Child, report: DeathReport) -> None:
        """Keep the report; the last one resolves the future."""
        self.on_disconnect(child)
        rank = self._ranks[child]
        self._tails[rank] = report.stderr_tail
        if self._death is None and self._culprit in (None, rank):
            seconds = self._missed_seconds or report.deadline_seconds
            self._death = replace(report, job=self._call.job, deadline_seconds=seconds)
        self._left -= 1
        if not self._left:
            self._resolve()

    def _fail_by_error(self) -> None:
        if self._errors and not self._failed:
            self._failed = True
            self._culprit, self._error = next(iter(self._errors.items()))
            self._end_all()

    def _end_all(self) -> None:
        for child in self._ranks:
            self._dispatcher.kill(child)
        if not self._left:
            self._resolve()

    def _resolve(self) -> None:
        future: Future[Any] = self._call.future
        if not self._failed:
            future.set_result([self._results[rank] for rank in range(self._size)])
            return
        death = self._death if self._error is None else None
        report = GroupReport(
            job=self._call.job,
            size=self._size,
            culprit=self._culprit,
            reason=f"failed: {self._error}" if death is None else death.reason,
            death=death,
            answered=tuple(sorted(self._results)),
            tails=tuple(self._tails),
        )
        error = GroupDiedError(report)
        error.__cause__ = self._error if death is None else ChildDiedError(death)
        future.set_exception(error)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port
