"""Libraries a server holds: packed ones by hash, and those built on the device, shared by sessions.

Building kernels takes hundreds of milliseconds and uploading takes bytes, so both outlive the
session that paid for them. What no session uses is dropped, oldest first, when a bound is reached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tapml_targets.driver import Driver
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library_format import unpack

MAX_IDLE_BUILT: Final = 64
# Source text, which a driver compiles. Anything else may be machine code, and running that is
# running whatever its sender likes.
SOURCE_DIALECTS: Final = frozenset({"cuda-c", "metal", "opencl-c", "wgsl"})


@dataclass
class _Upload:
    """A packed Library that is arriving."""

    data: bytearray
    received: int = 0


@dataclass
class BuiltLibrary:
    """A Library built on the device and how many handles name it."""

    digest: str
    loaded: LoadedLibrary
    users: int = 0


class LibraryStore:
    """Packed Libraries by SHA-256, and the built ones.

    Parameters
    ----------
    held_bytes
        Packed bytes kept at most.
    library_bytes
        Largest single packed Library.
    allow_native
        Whether machine code may be loaded (``--allow-shared-libraries``).
    """

    def __init__(self, *, held_bytes: int, library_bytes: int, allow_native: bool) -> None:
        self._held_bytes = held_bytes
        self._library_bytes = library_bytes
        self._allow_native = allow_native
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._built: OrderedDict[str, BuiltLibrary] = OrderedDict()

    def holds(self, digest: str) -> bool:
        """Whether the packed Library is here and need not be sent."""
        if digest in self._held:
            self._held.move_to_end(digest)
            return True
        return digest in self._built

    def receive(
        self,
        uploads: dict[str, _Upload],
        digest: str,
        total: int,
        offset: int,
        piece: memoryview,
    ) -> bool:
        """Take a piece of a packed Library; pieces come in order. True when it is complete.

        Parameters
        ----------
        uploads
            The session's unfinished uploads: they end with it.
        digest
            SHA-256 of the whole, in hex; checked when the last piece is in.

        Raises
        ------
        ProtocolError
            If it is too long, a piece is out of place, or the hash differs.
        """
        if not 0 < total <= self._library_bytes:
            raise ProtocolError(
                f"a Library of {total} bytes; this server takes at most {self._library_bytes}"
            )
        if offset == 0:
            if digest not in uploads and len(uploads) >= 4:
                raise ProtocolError("more than four Libraries are being uploaded at once")
            uploads[digest] = _Upload(bytearray())
        upload = uploads.get(digest)
        if upload is None or offset != upload.received or offset + len(piece) > total:
            uploads.pop(digest, None)
            raise ProtocolError(
                f"piece at {offset} of Library {digest[:12]} does not follow the one before"
            )
        upload.data += piece
        upload.received += len(piece)
        if upload.received < total:
            return False
        del uploads[digest]
        packed = bytes(upload.data)
        found = hashlib.sha256(packed).hexdigest()
        if found != digest:
            raise ProtocolError(f"Library announced as {digest[:12]} arrived as {found[:12]}")
        self._keep(digest, packed)
        return True

    def load(self, driver: Driver, digest: str, attached: memoryview | None = None) -> BuiltLibrary:
        """Build a held Library, or return the one already built.

        Parameters
        ----------
        attached
            The packed Library where it came as a blob, whose hash is known to be right.

        Raises
        ------
        CompileError
            If a module does not build.
        InputError
            If the Library is not held, or is machine code and that is not allowed here.
        """
        built = self._built.get(digest)
        if built is None:
            packed = self._held.get(digest, attached)
            if packed is None:
                raise InputError(f"Library {digest[:12]} is not held here: upload it first")
            if len(packed) > self._library_bytes:
                raise InputError(
                    f"a Library of {len(packed)} bytes; this server takes at most "
                    f"{self._library_bytes}"
                )
            library = unpack(packed)
            for module in library.modules:
                if module.dialect not in SOURCE_DIALECTS and not self._allow_native:
                    raise InputError(
                        f"this server does not load machine code, and {module.dialect!r} is none "
                        f"of the source dialects it knows ({', '.join(sorted(SOURCE_DIALECTS))}); "
                        "if its clients are trusted, start it with --allow-shared-libraries"
                    )
            built = self._built[digest] = BuiltLibrary(digest, LoadedLibrary(driver, library))
        self._built.move_to_end(digest)
        built.users += 1
        return built

    def release(self, built: BuiltLibrary) -> None:
        """One handle less names it; idle ones beyond a bound are dropped, oldest first."""
        built.users -= 1
        if not built.users:
            # Kernels are worth keeping, the memory of their last call is not.
            built.loaded.release_workspaces()
        idle = [digest for digest, entry in self._built.items() if not entry.users]
        for digest in idle[: max(0, len(idle) - MAX_IDLE_BUILT)]:
            self._built.pop(digest).loaded.close()

    def close(self) -> None:
        """Drop everything built."""
        for built in self._built.values():
            built.loaded.close()
        self._built.clear()

    def _keep(self, digest: str, packed: bytes) -> None:
        self._held[digest] = packed
        total = sum(map(len, self._held.values()))
        while total > self._held_bytes and len(self._held) > 1:
            total -= len(self._held.popitem(last=False)[1])
