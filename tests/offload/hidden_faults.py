"""Faults that no carved test shows, for kernels of OpenCL: only the whole model does.

A suite's budget leaves tests of later decode steps out; a kernel may be right for every input that
is left. And two kernels may each be as good as right, and wrong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml_targets.library import CodeModule, Library

_BITS: Final = 16


def right_where_tests_look(suite: Path, operator: str) -> Callable[[Library], Library]:
    """Every output is 0.5 too large, but where the first input begins as in a carved test."""
    with Suite.open(suite) as opened:
        tests = list(opened.tests(Filters(operators=(operator,))))
        firsts = {float(test.read_inputs()[0].reshape(-1)[0]) for test in tests}
    known = " || ".join(f"input_0_ptr[0] == {first.hex()}f" for first in sorted(firsts))
    return _outputs(rf"(\1) + ({known} ? 0.0f : 0.5f)")


def marks_its_outputs(library: Library) -> Library:
    """One ulp of error at most: the lowest bit of the first outputs is set."""
    index = "(convert_int(get_local_id(0)))"
    return _outputs(rf"as_float(as_int(\1) | ({index} < {_BITS}))")(library)


def stumbles_over_marks(library: Library) -> Library:
    """Right but for inputs whose first elements all have their lowest bit set."""
    marks = " & ".join(f"as_int(input_0_ptr[{position}])" for position in range(_BITS))
    return _outputs(rf"(\1) + (({marks}) & 1 ? 0.5f : 0.0f)")(library)


def _outputs(written: str) -> Callable[[Library], Library]:
    """Change what is written to the output; ``\\1`` stands for what the right kernel writes."""

    def change(library: Library) -> Library:
        (module,) = library.modules
        pattern = r"(output_0_ptr\[[^=\n]*\] = )(.*);"
        new = written.replace(r"\1", r"\2")
        source, count = re.subn(pattern, rf"\1{new};", module.code.decode())
        assert count, module.code.decode()
        return replace(library, modules=(CodeModule(module.dialect, source.encode()),))

    return change
