"""Results of a check in a run folder, so that a check that was ended goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tapml.distributed.plan import Plan
from tapml.distributed.results import JobFacts, Outcome, RunResult, Setting
from tapml.runs.events import Watcher
from tapml.runs.folder import RunFolder
from tapml.runs.journal import Journal
from tapml.runs.kind import RunKind
from tapml.runs.phases import Phases
from tapml.runs.result_key import ResultKey


class OneDevice(msgspec.Struct, frozen=True):
    """What the runs on one device told, and the outcome of every setting if none can be judged."""

    facts: JobFacts
    outcome: Outcome | None = None
    reason: str = ""


KIND: Final = RunKind(
    "tapml-distributed-run/1",
    statuses=tuple(Outcome),
    results={"one device": OneDevice, "setting": RunResult},
    restart="start again in another folder (--folder)",
)


@dataclass(frozen=True)
class Kept:
    """The results of earlier runs on the same job, under the same versions.

    Attributes
    ----------
    journal
        The folder's; None to keep nothing.
    parts
        Everything that all results depend on.
    """

    journal: Journal | None
    parts: Mapping[str, str]

    def one_device(self) -> OneDevice | None:
        """What one device told."""
        found = None if self.journal is None else self.journal.result(self._key("one device"))
        return None if found is None else msgspec.convert(found.data, OneDevice)

    def keep_one_device(self, told: OneDevice) -> None:
        """Write what one device told."""
        self._keep("one device", told.outcome or Outcome.EQUAL, told)

    def result(self, setting: Setting) -> RunResult | None:
        """The result of a setting."""
        found = None if self.journal is None else self.journal.result(self._key(setting.name))
        return None if found is None else msgspec.convert(found.data, RunResult)

    def keep(self, result: RunResult) -> None:
        """Write a result, unless another try may end otherwise: not run, or out of time."""
        if result.outcome not in (Outcome.NOT_RUN, Outcome.HANG, Outcome.SLOW):
            self._keep(result.setting.name, result.outcome, result)

    def _key(self, subject: str) -> ResultKey:
        return ResultKey.of(**self.parts, subject=subject)

    def _keep(self, subject: str, status: Outcome, data: Any) -> None:
        if self.journal is not None:
            stage = "setting" if isinstance(data, RunResult) else "one device"
            plain = msgspec.to_builtins(data)
            self.journal.record(self._key(subject), stage, subject, str(status), plain)


@contextmanager
def keeping(folder: Path | None, watcher: Watcher) -> Iterator[tuple[Journal | None, Phases]]:
    """Hold a run folder while the block works; without one, keep nothing.

    Raises
    ------
    InputError
        If the folder holds something else.
    SetupError
        If another process holds it, or it cannot be written.
    """
    if folder is None:
        yield None, Phases(watcher)
        return
    kept = RunFolder(folder, KIND)
    if not kept.exists:
        kept.begin()
    with kept.run(watcher=watcher) as run:
        yield run.journal, run.phases


def digest_of(plan: Plan) -> str:
    """Hash of weights, batches and the sources of the job, which also say who gets which part."""
    found = hashlib.sha256()
    sent = [plan.weights, plan.batches, plan.sources]
    for part in _bytes_of(sent):
        found.update(part)
    return found.hexdigest()


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{key}:".encode()
            yield from _bytes_of(item)
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}]".encode()
        for item in value:
            yield from _bytes_of(item)
    else:
        yield f"{value!r};".encode()
