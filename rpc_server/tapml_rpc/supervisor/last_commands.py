"""The batches a worker took last, kept packed in shared memory for an error report."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.failures import render_command
from tapml_rpc.running_batch import place_in
from tapml_targets.errors import ProtocolError

# As many as a session may have unanswered, short ones at least: one of them is running.
_BATCHES: Final = 64
_DATA_BYTES: Final = 4 * wire.MAX_HEADER_BYTES
# The head: how many batches, and how many bytes were written in all.
_HEAD: Final = struct.Struct("<QQ")
# Of each: its sequence, where it begins in all bytes written, and its bytes.
_ENTRY: Final = struct.Struct("<QQQ")
_DATA: Final = _HEAD.size + _BATCHES * _ENTRY.size
JOURNAL_BYTES: Final = _DATA + _DATA_BYTES
_SHOWN: Final = 5


class LastCommands:
    """Written by a worker, and read by its supervisor only when it is asked.

    `memory` has ``JOURNAL_BYTES``, all zero at first. What a reader finds is checked: a worker that
    runs anybody's kernels may have written anything.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def add(self, sequence: int, packed: bytes) -> None:
        """Note a batch, before it is run."""
        memory = self._memory
        count, end = _HEAD.unpack_from(memory)
        nbytes = len(packed)
        offset = end % _DATA_BYTES
        if offset + nbytes > _DATA_BYTES:
            end, offset = end + _DATA_BYTES - offset, 0
        memory[_DATA + offset : _DATA + offset + nbytes] = packed
        _ENTRY.pack_into(memory, _HEAD.size + count % _BATCHES * _ENTRY.size, sequence, end, nbytes)
        _HEAD.pack_into(memory, 0, count + 1, end + nbytes)

    def name(self, sequence: int, place: int) -> str:
        """A command in readable form; ``fence`` for what follows a batch's last one."""
        index, inner = place_in(place)
        for number, packed in self._batches():
            if number == sequence:
                commands = _commands(packed)
                if index >= len(commands):
                    return "fence"
                shown = render_command(commands[index])
                return shown if inner < 0 else f"{shown}, its command {inner}"
        return f"command {index} of batch {sequence}"

    def report(self, running: tuple[int, int, float] | None) -> str:
        """The last few commands up to the `running` (batch, place), one per line.

        Empty for none.
        """
        shown: list[str] = []
        for sequence, packed in self._batches():
            commands = _commands(packed)
            if running is not None and sequence >= running[0]:
                # Later ones have not begun.
                commands = commands[: place_in(running[1])[0] + 1] if sequence == running[0] else []
            shown += [render_command(each) for each in reversed(commands[-_SHOWN:])]
            if len(shown) >= _SHOWN:
                break
        if not shown:
            return ""
        what = "received" if running is None else "begun"
        return f"\nlast commands {what}:\n  " + "\n  ".join(reversed(shown[:_SHOWN]))

    def close(self) -> None:
        """Release the memory."""
        self._memory.release()

    def _batches(self) -> Iterator[tuple[int, bytes]]:
        """The last ones first, as far as they have not been overwritten."""
        count, end = _HEAD.unpack_from(self._memory)
        for index in range(count - 1, max(count - _BATCHES, 0) - 1, -1):
            place = _HEAD.size + index % _BATCHES * _ENTRY.size
            sequence, start, nbytes = _ENTRY.unpack_from(self._memory, place)
            if end - start > _DATA_BYTES or nbytes > wire.MAX_HEADER_BYTES:
                return
            offset = _DATA + start % _DATA_BYTES
            yield sequence, bytes(self._memory[offset : offset + nbytes])


def _commands(packed: bytes) -> list[Any]:
    with suppress(ProtocolError):
        commands = wire.unpack(packed).get("commands")
        return commands if isinstance(commands, list) else []
    return []
