"""Objects on a device, as the client names them: buffers, tensors, Libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tapml_targets.dtype import dtype as find_dtype
from tapml_targets.errors import DeviceRestartedError, InputError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.client import Session


class RemoteBuffer:
    """Device memory of `nbytes` behind a `handle` that this client chose.

    Freed by :meth:`Session.free`, when the session ends, or when it is garbage-collected.
    """

    __slots__ = ("_collect", "freed", "handle", "nbytes", "session")

    def __init__(
        self,
        session: Session,
        handle: int,
        nbytes: int,
        collect: Callable[[tuple[int | str, int]], None],
    ) -> None:
        self.session = session
        self.handle = handle
        self.nbytes = nbytes
        self.freed = False
        self._collect = collect

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        return f"RemoteBuffer(handle={self.handle}, nbytes={self.nbytes}{state})"

    def check_window(self, session: Session, offset: int, nbytes: int) -> None:
        """Check that `session` has this buffer and the window lies inside.

        Raises InputError, or DeviceRestartedError for a buffer of an earlier life of the
        server.
        """
        if self.freed or self.session is not session:
            raise self._not_of(session)
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InputError(
                f"bytes {offset} to {offset + nbytes} lie outside a buffer of {self.nbytes} bytes"
            )

    def _not_of(self, session: Session) -> TapmlError:
        made_in = self.session
        if made_in.address == session.address and made_in.epoch != session.epoch:
            return DeviceRestartedError(
                f"the server at {session.address} has restarted since {self} was made: what it "
                "held is gone; make it again in this session"
            )
        return InputError(f"{self} does not belong to this session or was freed")

    def __del__(self) -> None:
        if not self.freed:
            self._collect((self.handle, self.nbytes))


@dataclass(frozen=True)
class RemoteTensor:
    """A window on a remote buffer: `shape` in elements of `dtype`, from `byte_offset` on."""

    buffer: RemoteBuffer
    byte_offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        elements = 1
        for extent in self.shape:
            elements *= extent
        return find_dtype(self.dtype).nbytes(elements)


@dataclass(frozen=True)
class RemoteLibrary:
    """A Library loaded on a device.

    `handle` is its number on the wire, `digest` the SHA-256 of its packed form. `operators` and
    `entries` can be called.
    """

    session: Session
    handle: int
    digest: str
    operators: tuple[str, ...]
    entries: tuple[str, ...]

    def call_fields(
        self,
        session: Session,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None,
    ) -> list[Any]:
        """The fields of ``call``: Library, name, tensors, symbols; raises InputError."""
        if self.session is not session:
            raise InputError(f"Library {self.digest[:12]} is loaded in another session")
        if name not in self.operators and name not in self.entries:
            known = ", ".join((*self.entries, *self.operators)[:20])
            raise InputError(f"the Library has no operator or entry {name!r}; it has {known}")
        arguments = []
        for tensor in tensors:
            buffer = tensor.buffer
            buffer.check_window(session, 0, 0)
            arguments.append([buffer.handle, tensor.byte_offset, [*tensor.shape], tensor.dtype])
        return [self.handle, name, arguments, dict(symbols or {})]
