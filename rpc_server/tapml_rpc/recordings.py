"""Programs: commands that a session has its device record, and run by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc import wire
from tapml_rpc.device.program_body import MAX_ARGUMENTS, MAX_NAME_CHARACTERS
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_rpc.transport import PendingRead
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml_rpc.session import Session

MAX_PAYLOAD_BYTES: Final = 1 << 20
"""Most bytes of all writes of a program in one run."""


class RemoteProgram:
    """Commands that a device knows by one name; made by :meth:`Session.program`.

    Inside the ``with`` block that makes it, its methods record commands. Afterwards
    :meth:`Session.execute` and :meth:`Batch.execute` run it. The device forgets it when it is
    garbage-collected. It keeps its buffers and Libraries. `name` is its name on the wire,
    `commands` are in wire form. A run has `writes` (position in the chunk, bytes), `reads`
    (place of the command, bytes) and so many integer `arguments`.
    """

    def __init__(
        self, session: Session, name: str, collect: Callable[[tuple[int | str, int]], None]
    ) -> None:
        if not name or len(name) > MAX_NAME_CHARACTERS:
            raise InputError(f"a program's name has 1 to {MAX_NAME_CHARACTERS} characters")
        self.session = session
        self.name = name
        self.commands: list[list[Any]] = []
        self.writes: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.arguments = 0
        self._collect = collect
        self._uses: list[object] = []
        self._payload_bytes = 0
        # Whether it has been sent; and whether the device knows it.
        self.recorded = False
        self.known = False

    def __repr__(self) -> str:
        return f"RemoteProgram({self.name!r}, {len(self.commands)} commands)"

    def __del__(self) -> None:
        if self.known:
            self._collect((self.name, 0))

    def argument(self) -> Any:
        """An integer that every run brings, usable as an offset, an extent or a symbol."""
        if self.arguments == MAX_ARGUMENTS:
            raise InputError(f"a program has at most {MAX_ARGUMENTS} arguments")
        self.arguments += 1
        return {"argument": self.arguments - 1}

    def write(self, buffer: RemoteBuffer, nbytes: int | None = None, byte_offset: Any = 0) -> None:
        """Write bytes that every run brings, in the order of these calls."""
        size = self._size(buffer, nbytes, byte_offset)
        position = wire.aligned(self._payload_bytes)
        if position + size > MAX_PAYLOAD_BYTES:
            raise InputError(
                f"the writes of a program take at most {MAX_PAYLOAD_BYTES} bytes a run: write "
                "larger ones before it"
            )
        self._add(["write", buffer.handle, byte_offset, size, position], buffer)
        self.writes.append((position, size))
        self._payload_bytes = position + size

    def read(self, buffer: RemoteBuffer, nbytes: int | None = None, byte_offset: Any = 0) -> None:
        """Read bytes; every run returns them, in the order of these calls."""
        size = self._size(buffer, nbytes, byte_offset)
        self.reads.append((len(self.commands), size))
        self._add(["read", buffer.handle, byte_offset, size], buffer)

    def fill(
        self, buffer: RemoteBuffer, pattern: bytes, nbytes: int | None = None, byte_offset: Any = 0
    ) -> None:
        """Repeat `pattern` over a window."""
        size = self._size(buffer, nbytes, byte_offset)
        self._add(["fill", buffer.handle, byte_offset, size, bytes(pattern)], buffer)

    def copy(
        self,
        source: RemoteBuffer,
        target: RemoteBuffer,
        nbytes: int | None = None,
        source_offset: Any = 0,
        target_offset: Any = 0,
    ) -> None:
        """Copy between two buffers on the device."""
        size = self._size(source, nbytes, source_offset)
        self._size(target, size, target_offset)
        command = ["copy", source.handle, source_offset, target.handle, target_offset, size]
        self._add(command, source, target)

    def call(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, Any] | None = None,
    ) -> None:
        """Run an operator or an entry; without arguments it is bound to its memory once."""
        fields = library.call_fields(self.session, name, tensors, symbols)
        self._add(["call", *fields, {}], library, *(tensor.buffer for tensor in tensors))

    def payload(self, payloads: Sequence[memoryview]) -> bytes | memoryview:
        """The chunk of a run; raises InputError if the payloads do not match the writes."""
        if len(payloads) != len(self.writes):
            raise InputError(
                f"{self} takes the bytes of {len(self.writes)} writes, {len(payloads)} came"
            )
        for number, (view, (_, size)) in enumerate(zip(payloads, self.writes, strict=True)):
            if len(view) != size:
                raise InputError(f"write {number} of {self} takes {size} bytes, {len(view)} came")
        if len(payloads) == 1:
            return payloads[0]
        chunk = bytearray(self._payload_bytes)
        for view, (position, size) in zip(payloads, self.writes, strict=True):
            chunk[position : position + size] = view
        return bytes(chunk)

    def results(self) -> dict[int, PendingRead]:
        """The results of a run, by the place of the read."""
        return {place: PendingRead(size) for place, size in self.reads}

    def _size(self, buffer: RemoteBuffer, nbytes: int | None, offset: Any) -> int:
        known = offset if isinstance(offset, int) else 0
        size = buffer.nbytes - known if nbytes is None else nbytes
        buffer.check_window(self.session, known, size)
        return size

    def _add(self, command: list[Any], *uses: object) -> None:
        if self.recorded:
            raise InputError(f"{self} has been recorded; record another one")
        self.commands.append(command)
        self._uses.extend(uses)
