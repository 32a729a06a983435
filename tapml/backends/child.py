"""The jobs of a backend's process; each returns plain data, also where the library fails.

A library's failure is a finding about the library, so it is not raised: the result then has the
one key ``failure``, with ``kind`` (``unsupported``, ``out of memory`` or ``error``), ``type``,
``message`` and ``place``, the innermost line of code that raised it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.runner import Array, RebuildsLayers, Runner, RunsPrefixes, SavesLayers
from tapml_targets.errors import (
    InputError,
    NoSuchDeviceError,
    UnreachableError,
    UnsupportedOperatorError,
)

JOBS: Final = tuple(
    f"{__name__}:{job}"
    for job in (
        "hold", "load", "run", "hidden", "prefix", "replay", "replay_all", "rebuild", "save_layer",
    )
)  # fmt: skip
_MESSAGE_CHARACTERS: Final = 2000
_NO_MEMORY: Final = re.compile(
    r"out of memory|resource_?exhausted|\bOOM\b|bad_alloc|bad allocation"
    r"|(can ?not|can't|failed to|unable to) allocate",
    re.IGNORECASE,
)
"""How libraries say it that raise no MemoryError."""


class Held:
    """What the process keeps between calls."""

    def __init__(self, package: str, model: Path, variant: str) -> None:
        self.package = package
        self.model = model
        self.variant = variant
        self.runner: Runner | None = None

    def loaded(self) -> Runner:
        """The model; :func:`load` came first."""
        if self.runner is None:
            raise InputError("expected the job load before this one")
        return self.runner


def hold(payload: dict[str, Any]) -> Held:
    """Keep what :func:`load` needs."""
    return Held(payload["package"], Path(payload["model"]), payload["variant"])


def load(held: Held, _: object) -> dict[str, Any]:
    """Load the model; its inputs, nodes and the libraries' versions."""

    def job() -> dict[str, Any]:
        runner = import_module(f"{held.package}.runner").load(held.model, held.variant)
        held.runner = runner
        return {
            "versions": runner.versions(),
            "inputs": [
                {"name": each.name, "shape": list(each.shape), "dtype": each.dtype}
                for each in runner.inputs()
            ],
            "nodes": [
                {"name": each.name, "kind": each.kind, "sources": [list(s) for s in each.sources]}
                for each in runner.nodes()
            ],
        }

    return _guarded(job)


def run(held: Held, inputs: dict[str, Array]) -> dict[str, Any]:
    """The outputs, as pairs of name and array."""
    return _guarded(
        lambda: {"outputs": [[name, each] for name, each in held.loaded().run(inputs).items()]}
    )


def hidden(held: Held, inputs: dict[str, Array]) -> dict[str, Any]:
    """Every node's outputs, and those of a second run that are other values."""

    def job() -> dict[str, Any]:
        first = held.loaded().hidden(inputs)
        second = held.loaded().hidden(inputs)
        others = {name: each for name, each in second.items() if not _equal(each, first.get(name))}
        return {"runs": [[[name, values] for name, values in run.items()]
                         for run in (first, others)]}  # fmt: skip

    return _guarded(job)


def _equal(one: Sequence[Array], other: Sequence[Array] | None) -> bool:
    return other is not None and len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def prefix(held: Held, payload: dict[str, Any]) -> dict[str, Any]:
    """One node of the model compiled as far as that."""

    def job() -> dict[str, Any]:
        runner = held.loaded()
        if not isinstance(runner, RunsPrefixes):
            raise UnsupportedOperatorError(f"{held.package} compiles no part of a model")
        return {"outputs": runner.prefix(payload["node"], payload["inputs"])}

    return _guarded(job)


def replay(held: Held, payload: dict[str, Any]) -> dict[str, Any]:
    """One node alone."""
    return _guarded(lambda: {"outputs": held.loaded().replay(payload["node"], payload["inputs"])})


def replay_all(held: Held, payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several nodes, each alone: the result or failure of each."""
    return [replay(held, each) for each in payloads]


def rebuild(held: Held, payload: dict[str, Any]) -> dict[str, Any]:
    """One node from the library's own calls."""

    def job() -> dict[str, Any]:
        runner = held.loaded()
        if not isinstance(runner, RebuildsLayers):
            raise UnsupportedOperatorError(f"{held.package} is no interface over a library")
        return {"outputs": runner.rebuild(payload["node"], payload["inputs"])}

    return _guarded(job)


def save_layer(held: Held, payload: dict[str, Any]) -> dict[str, Any]:
    """Write a model of one node into a folder: its name there, and its inputs by name."""

    def job() -> dict[str, Any]:
        runner = held.loaded()
        if not isinstance(runner, SavesLayers):
            raise UnsupportedOperatorError(f"{held.package} saves no layers")
        name, arrays = runner.save_layer(
            payload["node"], payload["inputs"], Path(payload["folder"])
        )
        return {"name": name, "arrays": [[key, each] for key, each in arrays.items()]}

    return _guarded(job)


def _guarded(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return job()
    except InputError as error:
        if not isinstance(error, UnsupportedOperatorError):
            raise
        return _failure("unsupported", error)
    except NotImplementedError as error:
        return _failure("unsupported", error)  # So do libraries say what they lack.
    except (NoSuchDeviceError, UnreachableError):
        raise  # This machine lacks something: nothing is found about the backend.
    except MemoryError as error:
        return _failure("out of memory", error)
    except Exception as error:
        return _failure("out of memory" if lacks_memory(str(error)) else "error", error)


def lacks_memory(said: str) -> bool:
    """Whether a library says that there is not enough memory.

    Examples
    --------
    >>> lacks_memory("DefaultCPUAllocator: can't allocate memory"), lacks_memory("out of bounds")
    (True, False)
    """
    return _NO_MEMORY.search(said) is not None


def _failure(kind: str, error: Exception) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    return {
        "failure": {
            "kind": kind,
            "type": type(error).__name__,
            "message": str(error)[:_MESSAGE_CHARACTERS],
            "place": f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}",
        }
    }
