"""The line of a kernel's text that an address in its compiled code belongs to."""

from __future__ import annotations

import bisect
import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from tapml_targets.simulator.toolchain import KERNEL_FILE


def line_at(library: ctypes.CDLL, address: int) -> int:
    """The line, from 1; 0 if it is not one of the text's, or pyelftools is not installed."""
    return place_at(library, address)[0]


def place_at(library: ctypes.CDLL, address: int, *, relative: bool = False) -> tuple[int, int]:
    """Line and column, from 1; zeros where :func:`line_at` gives 0.

    The address is counted from the start of the compiled module if it is `relative`.
    """
    library.tapml_base.restype = ctypes.c_uint64
    base = 0 if relative else library.tapml_base()
    rows = _rows(library._name)
    index = bisect.bisect_right(rows, (address - base, 1 << 30, 0)) - 1
    return rows[index][1:] if index >= 0 else (0, 0)


@cache
def _rows(path: str) -> list[tuple[int, int, int]]:
    """Rows (address, line, column) of the line table, in order; line 0 for other files."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return []
    found: list[tuple[int, int, int]] = []
    with Path(path).open("rb") as file:
        elf: Any = ELFFile(file)
        if not elf.has_dwarf_info():
            return []
        dwarf = elf.get_dwarf_info()
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            files = [entry.name.decode(errors="replace") for entry in program["file_entry"]]
            for entry in program.get_entries():
                state = entry.state
                if state is None:
                    continue
                mine = 0 < state.file <= len(files) and files[state.file - 1] == KERNEL_FILE
                line = state.line if mine and not state.end_sequence else 0
                found.append((state.address, line, state.column if line else 0))
    return sorted(found)
