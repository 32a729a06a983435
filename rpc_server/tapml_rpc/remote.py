"""What lives on a device, as the client names it: buffers, tensors, Libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tapml_targets.dtype import dtype as find_dtype

if TYPE_CHECKING:
    from tapml_rpc.client import Session


class RemoteBuffer:
    """Device memory behind a handle that this client chose.

    Given back by :meth:`Session.free`, when the session ends, or when nobody refers to it any
    more.

    Attributes
    ----------
    session
        The session it belongs to.
    handle
        Its number on the wire.
    nbytes
        Its size.
    """

    __slots__ = ("_collect", "freed", "handle", "nbytes", "session")

    def __init__(
        self,
        session: Session,
        handle: int,
        nbytes: int,
        collect: Callable[[tuple[int, int]], None],
    ) -> None:
        self.session = session
        self.handle = handle
        self.nbytes = nbytes
        self.freed = False
        self._collect = collect

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        return f"RemoteBuffer(handle={self.handle}, nbytes={self.nbytes}{state})"

    def __del__(self) -> None:
        if not self.freed:
            self._collect((self.handle, self.nbytes))


@dataclass(frozen=True)
class RemoteTensor:
    """A window on a remote buffer, handed to a call.

    `shape` counts elements of `dtype`; `byte_offset` is where the first one lies.
    """

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

    Attributes
    ----------
    session
        The session it belongs to.
    handle
        Its number on the wire.
    digest
        SHA-256 of its packed form.
    operators, entries
        What can be called.
    """

    session: Session
    handle: int
    digest: str
    operators: tuple[str, ...]
    entries: tuple[str, ...]
