"""What a session has its device record: calls by a handle, programs by a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tapml_rpc import wire
from tapml_rpc.command_queue import contiguous_bytes
from tapml_rpc.pending import Pending, PendingRead
from tapml_rpc.program_body import PROGRAMS, check_program
from tapml_rpc.remote import RemoteCall, RemoteLibrary, RemoteTensor
from tapml_rpc.remote_program import RemoteProgram
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml_rpc.session import Session

# For a server that has no programs and states no bound: its batches hold as many.
_MOST_COMMANDS = 1024


class Recordings:
    """The recorded calls and programs of a session, with its lock, queue and link."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._programs: WeakValueDictionary[str, RemoteProgram] = WeakValueDictionary()

    def record(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None = None,
    ) -> RemoteCall:
        """Have a call checked and bound to its memory once, for :meth:`Batch.run`."""
        session = self._session
        with session._lock:
            fields = library.call_fields(session, name, tensors, symbols)
            handle = None
            if wire.RECORDED_CALLS in session._link.features:
                handle = next(session._handles)
                session._add(["record", handle, *fields], 64 + len(name) + 64 * len(tensors))
            return RemoteCall(
                library, name, tuple(tensors), dict(symbols or {}), handle, session._dropped.append
            )

    def add_run(self, call: RemoteCall, options: dict[str, Any], pending: Pending | None) -> None:
        """Queue a run of a recorded call."""
        session = self._session
        if call.session is not session:
            raise InputError(f"{call} was recorded in another session")
        if call.handle is None:
            session._add_call(call.library, call.name, call.tensors, call.symbols, options, pending)
        else:
            session._add(["run", call.handle, options], 32, pending)

    @contextmanager
    def program(self, name: str) -> Iterator[RemoteProgram]:
        """Record a program: commands that are then run by one.

        Nothing runs while recording. A program of the same name is replaced. To a server without
        programs every run sends all commands.

        Raises
        ------
        InputError
            At the end, if it has too many commands.
        """
        session = self._session
        program = RemoteProgram(session, name, session._dropped.append)
        yield program
        with session._lock:
            most = session._link.bounds.program_commands or _MOST_COMMANDS
            body = check_program(name, program.commands, most)
            former = self._programs.get(name)
            if former is not None and former.known:
                former.known = False
                session._add(["forget", name], 16)
            program.recorded = True
            self._programs[name] = program
            if PROGRAMS in session._link.features:
                session._add(["program", name, program.commands], body.nbytes)
                program.known = True

    def execute(
        self, program: RemoteProgram, *payloads: Any, arguments: Sequence[int] = ()
    ) -> list[memoryview]:
        """Run a program; the results of its reads, in their order.

        Parameters
        ----------
        payloads
            The bytes of its writes, in their order: any contiguous buffers.
        arguments
            Its integers, in their order.

        Raises
        ------
        InputError
            If these do not match the program.
        TapmlError
            The stream's first error.
        """
        with self._session.batch() as batch:
            pending = batch.execute(program, *payloads, arguments=arguments)
        return [read.result() for read in pending]

    def add_execute(
        self, program: RemoteProgram, payloads: Sequence[Any], arguments: Sequence[int]
    ) -> list[PendingRead]:
        """Queue a run of a program."""
        session = self._session
        if program.session is not session or not program.recorded:
            raise InputError(f"{program} was recorded in another session, or not to its end")
        if self._programs.get(program.name) is not program:
            raise InputError(f"{program} has been replaced by another of its name")
        views = [contiguous_bytes(payload) for payload in payloads]
        chunk, results, given = program.payload(views), program.results(), list(arguments)
        session._collect()
        if program.known:
            command = ["execute", program.name, given, 0]
            header_bytes = 32 + len(program.name) + 9 * len(given)
            session._queue.add_with(command, 3, chunk, header_bytes, dict(results))
            return list(results.values())
        body = check_program(program.name, program.commands, len(program.commands))
        given, left = body.take(given), iter(views)
        for place in range(len(body.commands)):
            # A copy: each run has its payload somewhere else.
            command = [*body.command(place, given)]
            if command[0] == "write":
                session._queue.add_with(command, 4, next(left))
            else:
                nbytes = len(wire.pack({"": command}))
                session._queue.add(command, nbytes, results.get(place))
        return list(results.values())
