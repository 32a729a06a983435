"""A backend's process, and how its failures become findings."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tapml.backends.child import JOBS, lacks_memory
from tapml.backends.finding import Backend
from tapml.backends.runner import Array, Input, Node
from tapml.backends.steps import typed
from tapml.isolate.death import ChildDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml_targets.errors import TapmlError

_MODULE: Final = JOBS[0].partition(":")[0]


@dataclass(frozen=True)
class Failure:
    """A backend that did not do what it was asked for.

    Attributes
    ----------
    kind
        ``crash``, ``hang``, ``out of memory``, ``error`` or ``unsupported``.
    message
        In a line.
    place
        The innermost line of code that raised it, or the signal: equal failures have equal places.
    """

    kind: str
    message: str
    place: str = ""


class BackendFailedError(TapmlError):
    """A backend's :class:`Failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class BackendProcess:
    """One backend with one model, in a process that starts when it is first needed.

    Methods raise BackendFailedError; after a crash or a hang, the next call starts a new process.
    """

    backend: Backend
    model: Path
    pool: Pool
    environment: Environment
    deadline_seconds: float
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    _worker: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def load(self) -> None:
        """Load the model."""
        if self._worker is not None:
            return
        payload = {
            "package": self.backend.package,
            "model": str(self.model),
            "variant": self.backend.variant,
        }
        self._worker = self.pool.worker(
            f"{_MODULE}:hold",
            payload,
            environment=self.environment,
            deadline_seconds=self.deadline_seconds,
        )
        said = self._call("load", None)
        self.versions = said["versions"]
        self.inputs = [Input(i["name"], tuple(i["shape"]), i["dtype"]) for i in said["inputs"]]
        self.nodes = [
            Node(n["name"], n["kind"], tuple((name, place) for name, place in n["sources"]))
            for n in said["nodes"]
        ]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        self.load()
        return dict(self._call("run", typed(inputs, self.inputs))["outputs"])

    def hidden(self, inputs: Mapping[str, Array]) -> tuple[dict[str, list[Array]], ...]:
        """Every node's outputs, and those of a second run that are other values."""
        self.load()
        runs = self._call("hidden", typed(inputs, self.inputs))["runs"]
        return tuple(dict(each) for each in runs)

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        """What one node returns where the model is compiled as far as that."""
        self.load()
        payload = {"node": node, "inputs": typed(inputs, self.inputs)}
        return list(self._call("prefix", payload)["outputs"])

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """What one node returns for these inputs."""
        self.load()
        payload = {"node": node, "inputs": list(inputs)}
        return list(self._call("replay", payload)["outputs"])

    def rebuild(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """What the library's own calls make of these inputs of a node."""
        self.load()
        return list(self._call("rebuild", {"node": node, "inputs": list(inputs)})["outputs"])

    def save_layer(
        self, node: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """Write a model of one node: see :class:`tapml.backends.runner.SavesLayers`."""
        self.load()
        payload = {"node": node, "inputs": list(inputs), "folder": str(folder.resolve())}
        answer = self._call("save_layer", payload)
        return answer["name"], dict(answer["arrays"])

    def _call(self, job: str, payload: Any) -> Any:
        started = time.monotonic()
        try:
            answer = self._worker.call(f"{_MODULE}:{job}", payload)
        except ChildDiedError as error:
            self.close()
            raise BackendFailedError(_of_death(error)) from error
        finally:
            self.seconds += time.monotonic() - started
        if isinstance(answer, dict) and "failure" in answer:
            said = answer["failure"]
            first = _first_line(said["message"])
            kept = said["kind"] == "unsupported" and first
            message = first if kept else f"{said['type']}: {first}"
            if job == "load":
                self.close()
            raise BackendFailedError(Failure(said["kind"], message, said["place"]))
        return answer


def _first_line(message: str) -> str:
    """With the next where the first only introduces it."""
    lines = [each.strip() for each in message.splitlines() if each.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def _of_death(error: ChildDiedError) -> Failure:
    report = error.report
    if report.deadline_seconds:
        return Failure("hang", f"did not finish within {report.deadline_seconds:g} s", "deadline")
    if report.signal_number == signal.SIGKILL:
        return Failure("out of memory", f"the process {report.reason}", "SIGKILL")
    place, said = _last_words(report.stderr_tail)
    message = f"the process {report.reason}{f' in {place}' if place else ''}"
    kind = "out of memory" if lacks_memory(said) else "crash"
    return Failure(kind, f"{message}{f': {said}' if said else ''}", place or report.reason)


_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
_STACKS: Final = re.compile(r"^(?:Current thread|Thread 0x)", re.MULTILINE)
_THROWN: Final = re.compile(r"what\(\):\s*(?P<said>.+)")
_CURRENT: Final = "\nCurrent thread"
_FATAL: Final = "Fatal Python error"
_MOST_CHARACTERS: Final = 200


def _last_words(output: str) -> tuple[str, str]:
    """The innermost line of Python code at a crash, and what a C++ exception or check said."""
    before, _, stacks = output.partition(_FATAL)
    # The oldest thread comes last: where a library's own thread crashed, it is what called it.
    *_, oldest = _STACKS.split(stacks)
    stack, _, _ = (stacks.partition(_CURRENT)[2] or oldest).partition("\n\n")
    frame = _FRAME.search(stack)
    thrown = _THROWN.search(before)
    place = "" if frame is None else f"{'/'.join(Path(frame['file']).parts[-3:])}:{frame['line']}"
    return place, "" if thrown is None else thrown["said"].strip()[:_MOST_CHARACTERS]
