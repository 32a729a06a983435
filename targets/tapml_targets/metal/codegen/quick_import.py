"""TVM's tensor intrinsics, imported in seconds.

Each of some hundred functions of TVMScript asks ``inspect.stack()`` for its callers, which reads
the source of every frame: 40 to 100 s. TVM uses the frames alone.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType


@cache
def tensor_intrinsics() -> None:
    """Import them once."""
    with _frames_without_source():
        importlib.import_module("tvm.s_tir.tensor_intrin.metal")


@contextmanager
def _frames_without_source() -> Iterator[None]:
    usual = inspect.stack

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        """The callers' frames, without lines of source."""
        found = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            found.append(
                inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
            )
            frame = frame.f_back
        return found

    inspect.stack = stack
    try:
        yield
    finally:
        inspect.stack = usual
