"""Commands that are sent as one message, with one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc.pending import PendingCall, PendingRead
from tapml_rpc.remote import RemoteBuffer, RemoteCall, RemoteLibrary, RemoteTensor
from tapml_rpc.remote_program import RemoteProgram
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml_rpc.session import Session


# For every call without measurements: a decode step has hundreds.
_NOTHING_TO_REPORT: Final = PendingCall()
_NOTHING_TO_REPORT.resolve([None, []], memoryview(b""))


class Batch:
    """Commands in one message; reads and reports come with its answer.

    Made by :meth:`Session.batch`. Methods without a result are the session's own.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.allocate = session.allocate
        self.free = session.free
        self.write = session.write
        self.fill = session.fill
        self.copy = session.copy
        self.record = session.record
        self.program = session.program

    def read(
        self, buffer: RemoteBuffer, nbytes: int | None = None, byte_offset: int = 0
    ) -> PendingRead:
        """Copy bytes from the device; the result is there when the batch has ended."""
        return self._open()._add_read(buffer, nbytes, byte_offset)

    def call(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
        workspace_poison: bytes | None = None,
    ) -> PendingCall:
        """Run an operator or an entry, as :meth:`Session.call_and_report` does."""
        options: dict[str, Any] = {}
        if timed:
            options["timed"] = True
        if workspace_poison is not None:
            options["workspace_poison"] = bytes(workspace_poison)
        pending = PendingCall() if options else None
        self._open()._add_call(library, name, tensors, symbols, options, pending)
        return pending or _NOTHING_TO_REPORT

    def run(self, call: RemoteCall, *, timed: bool = False) -> PendingCall:
        """Run a recorded call; `timed` measures the time in kernels."""
        if not timed:
            self._open()._recordings.add_run(call, {}, None)
            return _NOTHING_TO_REPORT
        pending = PendingCall()
        self._open()._recordings.add_run(call, {"timed": True}, pending)
        return pending

    def execute(
        self, program: RemoteProgram, *payloads: Any, arguments: Sequence[int] = ()
    ) -> list[PendingRead]:
        """Run a program; the results of its reads, in their order.

        Parameters
        ----------
        payloads
            The bytes of its writes, in their order: any contiguous buffers. They may be changed as
            soon as the batch has ended.
        arguments
            Its integers, in their order.
        """
        return self._open()._recordings.add_execute(program, payloads, arguments)

    def _open(self) -> Session:
        if self._session._batch is not self:
            raise InputError("this batch has ended; open another one")
        return self._session
