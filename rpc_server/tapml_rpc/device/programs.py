"""The commands ``program``, ``execute`` and ``forget``: commands sent once, run by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tapml_rpc import wire
from tapml_rpc.device.program_body import MAX_NAME_CHARACTERS, check_program
from tapml_rpc.device.session_state import Index, RunningBatch
from tapml_rpc.welcome import Bounds
from tapml_targets.errors import InputError, ProtocolError, RemoteError

if TYPE_CHECKING:
    from tapml_rpc.device.commands import Commands


class Programs:
    """The commands over a session's programs. All methods run on the device thread."""

    def __init__(self, commands: Commands, bounds: Bounds) -> None:
        self._commands = commands
        self._bounds = bounds

    def record(self, batch: RunningBatch, index: Index, fields: list[Any]) -> None:
        """Keep a program; the names in its commands are resolved when they run."""
        name, commands = fields
        programs, bounds = batch.session.programs, self._bounds
        body = check_program(name, commands, bounds.program_commands)
        if body.name in programs:
            raise ProtocolError(f"program {body.name!r} is there already; forget it first")
        if len(programs) >= bounds.programs:
            raise InputError(f"this session already holds {bounds.programs} programs; forget one")
        held = sum(each.nbytes for each in programs.values())
        if held + body.nbytes > bounds.program_bytes:
            raise InputError(
                f"programs of {held + body.nbytes} bytes; a session holds at most "
                f"{bounds.program_bytes}"
            )
        programs[body.name] = body

    def forget(self, batch: RunningBatch, index: Index, fields: list[Any]) -> None:
        """Forget a program; a missing one is no error."""
        called = wire.text(fields[0], "program name", MAX_NAME_CHARACTERS)
        if batch.session.programs.pop(called, None) is not None:
            bound = batch.session.bound
            for key in [key for key in bound if key[0] == called]:
                del bound[key]

    def execute(self, batch: RunningBatch, index: int, fields: list[Any]) -> Iterator[None]:
        """Run a program; yields while a read of it waits for the client's credit."""
        name, arguments, chunk_offset = fields
        session, message = batch.session, batch.message
        called = wire.text(name, "program name", MAX_NAME_CHARACTERS)
        body = session.programs.get(called)
        if body is None:
            raise InputError(
                f"no program has the name {called!r}: it was forgotten, or recording it failed "
                "or was skipped on a poisoned session"
            )
        values = body.take(arguments)
        batch.count(len(body.commands), self._bounds.commands)
        batch.chunk_base = wire.integer(chunk_offset, "chunk offset")
        handlers = self._commands.handlers
        for place in range(len(body.commands)):
            command = body.command(place, values)
            batch.enter(called, index, place, command)
            if message.sequence <= session.cancel_through:
                raise RemoteError("cancelled by the client before it ran")
            self._commands.clock.begin(batch)
            if body.bindable[place]:
                self._commands.calls.run(batch, (called, place), command)
                continue
            paused = handlers[command[0]][1](batch, [index, place], command[1:])
            if paused is not None:
                yield from paused
        batch.leave()
