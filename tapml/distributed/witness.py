"""A thread in each rank that prints where the rank is, when a run hangs or another rank fails.

The main thread waits in C++ then, so nothing else can speak. What it prints is short: the pool
returns the last 4 kB of each rank's output.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle  # noqa: TID251  (torch gives stacks in this form only, to this very process)
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch._C import _distributed_c10d

import tapml
from tapml.isolate.member import Member
from tapml_targets.errors import TapmlError

MARK: Final = "tapml-witness "
_POLL_SECONDS: Final = 0.05
# The other ranks print so long after the first failure: some fail alike, or go on without it.
_LATER_SECONDS: Final = 0.15
SETTLE_SECONDS: Final = 0.4
MARGIN_SECONDS: Final = 1.0
_COLLECTIVES: Final = 8
_FRAMES: Final = 5
_TEXT: Final = 400
_OURS: Final = (str(Path(torch.__file__).parent), str(Path(tapml.__file__).parent), "<frozen")


class Witness:
    """Watches one rank.

    Parameters
    ----------
    member
        The rank.
    deadline_seconds
        When the pool kills the group, from now.
    flag
        A file of all ranks of this machine, which says that one has failed.
    """

    def __init__(self, member: Member, deadline_seconds: float, flag: Path) -> None:
        self.stage = "start"
        self._member = member
        self._flag = flag
        self._end_at = time.monotonic() + deadline_seconds - MARGIN_SECONDS
        self._main = threading.main_thread().ident
        self._printed = threading.Lock()
        self._error = ""
        threading.Thread(target=self._watch, name="witness", daemon=True).start()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Print an error of the block, let the other ranks print, and raise it again."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines() or [""]
            kind = "" if isinstance(error, TapmlError) else f"{type(error).__name__}: "
            self._error = f"{kind}{said[0]}"[:_TEXT]
            cause = error.__cause__ or error
            frames = traceback.extract_tb(cause.__traceback__)
            self._print(_places(frames))
            with contextlib.suppress(OSError):
                self._flag.touch()
            time.sleep(SETTLE_SECONDS)
            raise

    def _watch(self) -> None:
        while time.monotonic() < self._end_at and not self._flag.exists():
            time.sleep(_POLL_SECONDS)
        if self._flag.exists():
            time.sleep(_LATER_SECONDS)
        frame = sys._current_frames().get(self._main or 0)
        self._print([] if frame is None else _places(traceback.extract_stack(frame)))

    def _print(self, places: list[str]) -> None:
        if not self._printed.acquire(blocking=False):
            return
        count, last = collectives()
        text = json.dumps(
            {
                "rank": self._member.rank,
                "stage": self.stage,
                "error": self._error,
                "collectives": count,
                "last": last,
                "places": places[-_FRAMES:],
            },
            separators=(",", ":"),
        )
        with contextlib.suppress(OSError):
            os.write(2, f"\n{MARK}{text}\n".encode())


def collectives() -> tuple[int, list[list[Any]]]:
    """How many collectives this rank has begun, and [number, name, sizes, line] of the last ones.

    Torch's flight recorder knows those of DDP's C++ code, too; these have no line.
    """
    with contextlib.suppress(KeyError, RuntimeError, ValueError, pickle.UnpicklingError):
        dump = vars(_distributed_c10d)["_dump_fr_trace"]
        trace = pickle.loads(dump(True, True, False))  # noqa: S301  (made by this process)
        entries = trace.get("entries", [])
        last = [
            [
                each["record_id"],
                str(each["profiling_name"]).removeprefix("gloo:"),
                [size[:4] for size in each["input_sizes"][:3]],
                _line(each.get("frames", ())),
            ]
            for each in entries[-_COLLECTIVES:]
        ]
        return (entries[-1]["record_id"] + 1 if entries else 0), last
    return 0, []


def _line(frames: Iterable[Mapping[str, Any]]) -> str:
    """The innermost line of the job or its libraries that called; empty if none did."""
    summaries = [
        traceback.FrameSummary(each["filename"], each["line"], each["name"], lookup_line=False)
        for each in frames
    ]
    outermost_first = [each for each in reversed(summaries) if not each.filename.startswith(_OURS)]
    return _places(outermost_first)[-1] if outermost_first else ""


def _places(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    """The frames as text: those of the job and its libraries, or all if there are no such."""
    listed = list(frames)
    chosen = [each for each in listed if not each.filename.startswith(_OURS)] or listed
    return [f"{Path(each.filename).name}:{each.lineno} {each.name}"[:120] for each in chosen]
