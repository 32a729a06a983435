"""What a session brought by hash: Libraries, packed and built, and attached blobs."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tapml_targets.driver import Driver
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library_format import unpack

MAX_IDLE_BUILT: Final = 64


@dataclass
class BuiltLibrary:
    """A Library built on the device, and the number of its handles."""

    digest: str
    loaded: LoadedLibrary
    users: int = 0


class LibraryStore:
    """Packed Libraries by SHA-256, and the built ones.

    It keeps at most `held_bytes` of packed ones, each of at most `library_bytes`. `allow_native`:
    machine code may be loaded (``--allow-shared-libraries``).
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
        uploads: dict[str, bytearray],
        digest: str,
        total: int,
        offset: int,
        piece: memoryview,
    ) -> bool:
        """Take a piece of a packed Library; pieces come in order. True when it is complete.

        `uploads` are the session's unfinished uploads, which end with it. The SHA-256 `digest` is
        checked with the last piece. Raises ProtocolError if it is too long, a piece is out of
        place, or the hash differs.
        """
        if not 0 < total <= self._library_bytes:
            raise ProtocolError(
                f"a Library of {total} bytes; this server takes at most {self._library_bytes}"
            )
        if offset == 0:
            if digest not in uploads and len(uploads) >= 4:
                raise ProtocolError("more than four Libraries are being uploaded at once")
            uploads[digest] = bytearray()
        upload = uploads.get(digest)
        if upload is None or offset != len(upload) or offset + len(piece) > total:
            uploads.pop(digest, None)
            raise ProtocolError(
                f"piece at {offset} of Library {digest[:12]} does not follow the one before"
            )
        upload += piece
        if len(upload) < total:
            return False
        packed = bytes(uploads.pop(digest))
        found = hashlib.sha256(packed).hexdigest()
        if found != digest:
            raise ProtocolError(f"Library announced as {digest[:12]} arrived as {found[:12]}")
        self._keep(digest, packed)
        return True

    def load(self, driver: Driver, digest: str, attached: memoryview | None = None) -> BuiltLibrary:
        """Build a held Library, or return the one already built.

        `attached` is the packed Library if it came as a blob, whose hash was verified. Raises
        CompileError if a module does not build, InputError if the Library is not held, or is
        machine code that is not allowed.
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
                # What a module says of itself is held to its dialect when it is loaded.
                if module.kind == "machine" and not self._allow_native:
                    raise InputError(
                        f"this server does not load machine code ({module.dialect!r}), which runs "
                        "with all its rights; if its clients are trusted, start it with "
                        "--allow-shared-libraries"
                    )
            built = self._built[digest] = BuiltLibrary(digest, LoadedLibrary(driver, library))
        self._built.move_to_end(digest)
        built.users += 1
        return built

    def release(self, built: BuiltLibrary) -> None:
        """Drop one handle; idle Libraries beyond a bound are dropped, oldest first."""
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


class AttachedBlobs:
    """Read-only mappings of blobs by hash. All methods run on the device thread."""

    def __init__(self) -> None:
        self._views: dict[str, memoryview] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._views

    def __len__(self) -> int:
        return len(self._views)

    def receive(self, digest: str, descriptor: int, nbytes: int) -> None:
        """Map a blob the supervisor has attached; a descriptor of -1 releases it.

        The supervisor has hashed and sealed it. This object owns the descriptor. Raises
        ProtocolError if it does not hold `nbytes` bytes.
        """
        if descriptor < 0:
            self._views.pop(digest, None)
            return
        try:
            found = os.fstat(descriptor).st_size
            if found != nbytes or not nbytes:
                raise ProtocolError(f"blob {digest[:12]} of {nbytes} bytes came with {found}")
            # Private: Linux before 6.7 maps sealed memory in no other way.
            mapping = mmap.mmap(descriptor, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        # The mapping ends with the last view of it: a command may still be reading.
        self._views[digest] = memoryview(mapping)

    def view(self, digest: str) -> memoryview:
        """A blob's bytes; raises InputError if it is not attached."""
        view = self._views.get(digest)
        if view is None:
            raise InputError(
                f"blob {digest[:12]} is not attached to this session: attach it, or wait for the "
                "answer to see whether it was"
            )
        return view

    def window(self, digest: str, offset: int, nbytes: int) -> memoryview:
        """Bytes of a blob; raises InputError if it is not attached or they lie outside it."""
        view = self.view(digest)
        if offset + nbytes > len(view):
            raise InputError(
                f"bytes {offset} to {offset + nbytes} lie outside blob {digest[:12]} of "
                f"{len(view)} bytes"
            )
        return view[offset : offset + nbytes]

    def close(self) -> None:
        """Release all of them."""
        self._views.clear()
