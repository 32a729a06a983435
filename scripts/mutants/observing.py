"""Records a kernel's effect on memory bit for bit, independent of verdicts.

It shares no code with tapml's replay on purpose: a mutant is observable by its bytes only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import POISONS, Arena, Bytes
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary, RemoteTensor
from tapml_targets.errors import DeviceLostError, TapmlError

OUTSIDE: Final = "memory outside the outputs"


@dataclass(frozen=True)
class Trace:
    """The memory after one test, once per poison.

    Attributes
    ----------
    outputs, guards, inputs
        Digests of the outputs, of the bytes around them, of the inputs with the bytes around them.
    workspaces
        Workspaces that were written beyond.
    error
        The error if the device refused the call.
    """

    outputs: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    error: str = ""

    def differs_in(self, clean: Trace) -> str:
        """What differs from the right kernel; empty if nothing does."""
        if self.error != clean.error:
            return "an error"
        if (self.guards, self.inputs, self.workspaces) != (
            clean.guards,
            clean.inputs,
            clean.workspaces,
        ):
            return OUTSIDE
        return "output bits" if self.outputs != clean.outputs else ""


def observe(
    operator: Operator, test: CarvedCase, library: RemoteLibrary, session: Session
) -> Trace:
    """Run a test once per poison, around and inside its tensors, and record memory afterwards.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    inputs = [np.ascontiguousarray(values) for values in test.read_inputs()]
    outputs = test.read_outputs()
    read = Arena.of([values.nbytes for values in inputs])
    written = Arena.of([values.nbytes for values in outputs])
    source, sink = session.allocate(read.nbytes), session.allocate(written.nbytes)
    places = {"input": iter(zip(read.windows, inputs, strict=True))}
    places["output"] = iter(zip(written.windows, outputs, strict=True))
    tensors = []
    for parameter in operator.parameters:
        window, values = next(places[parameter.role])
        buffer = source if parameter.role == "input" else sink
        tensors.append(RemoteTensor(buffer, window.offset, values.shape, parameter.dtype))
    reads, sources, reports = [], [], []
    try:
        with session.batch() as batch:
            for poison in POISONS:
                fill = bytes([poison])
                batch.write(source, read.filled(poison, inputs))
                batch.fill(sink, fill, written.nbytes)
                reports.append(
                    batch.call(library, operator.name, tensors, test.symbols, workspace_poison=fill)
                )
                reads.append(batch.read(sink, written.nbytes))
                sources.append(batch.read(source, read.nbytes))
        memories = [np.frombuffer(each.result(), np.uint8) for each in reads]
        damaged = tuple(name for each in reports for name in each.result().damaged_guards)
    except DeviceLostError:
        raise
    except TapmlError as error:
        session.reset()
        return Trace(error=type(error).__name__)
    finally:
        session.free(source)
        session.free(sink)
    return Trace(
        tuple(_inside(written, memory) for memory in memories),
        tuple(_around(written, memory) for memory in memories),
        tuple(_digest(np.frombuffer(each.result(), np.uint8)) for each in sources),
        damaged,
    )


def _inside(arena: Arena, memory: Bytes) -> str:
    """A digest of the tensors."""
    return _digest(np.concatenate([arena.take(memory, i) for i in range(len(arena.windows))]))


def _around(arena: Arena, memory: Bytes) -> str:
    """A digest of all bytes but the tensors'."""
    outside = np.ones(arena.nbytes, np.bool_)
    for window in arena.windows:
        outside[window.offset : window.offset + window.nbytes] = False
    return _digest(memory[outside])


def _digest(memory: Bytes) -> str:
    return hashlib.sha256(memory.tobytes()).hexdigest()
