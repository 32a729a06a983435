"""What a session brought by hash: attached blobs, and Libraries built of them."""

from __future__ import annotations

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
NO_MACHINE_CODE: Final = "this server does not load machine code"


@dataclass
class BuiltLibrary:
    """A Library built on the device, and the number of its handles."""

    loaded: LoadedLibrary
    users: int = 0


class LibraryStore:
    """The Libraries built on one driver; a packed one has at most `library_bytes`.

    `allow_native`: machine code may be loaded (``--allow-shared-libraries``).
    """

    def __init__(self, driver: Driver, *, library_bytes: int, allow_native: bool) -> None:
        self._driver = driver
        self._library_bytes = library_bytes
        self._allow_native = allow_native
        self._built: OrderedDict[str, BuiltLibrary] = OrderedDict()

    def load(self, digest: str, blobs: AttachedBlobs) -> BuiltLibrary:
        """Build a Library that is attached, or return the one already built.

        Raises CompileError if a module does not build, InputError if it is not attached, too long,
        or machine code that is not allowed.
        """
        built = self._built.get(digest)
        if built is None:
            packed = blobs.view(digest)
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
                        f"{NO_MACHINE_CODE} ({module.dialect!r}), which runs with all its rights; "
                        "if its clients are trusted, start it with --allow-shared-libraries"
                    )
            built = BuiltLibrary(LoadedLibrary(self._driver, library))
            self._built[digest] = built
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


class AttachedBlobs:
    """Read-only mappings of blobs by hash. All methods run on the device thread."""

    def __init__(self) -> None:
        self._views: dict[str, memoryview] = {}

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
