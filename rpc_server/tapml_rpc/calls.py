"""The commands that run operators and entries, given in full or recorded and run by handle."""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.libraries import BuiltLibrary
from tapml_rpc.running_batch import Index, RunningBatch
from tapml_rpc.server_session import Recording, ServerSession
from tapml_targets.driver import TensorUse
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import CallReport

MAX_RANK: Final = 32
# Each keeps the launches of its call, which may be thousands.
MAX_RECORDINGS: Final = 64


class Calls:
    """The commands ``call``, ``record`` and ``run``. All methods run on the device thread."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def call(
        self,
        batch: RunningBatch,
        index: Index,
        library: object,
        name: object,
        tensors: object,
        symbols: object,
        options: object,
    ) -> None:
        """Run an operator or an entry."""
        built = _built(batch, library)
        if type(options) is not dict:
            raise ProtocolError("the options of a call are a map")
        poison = options.get("workspace_poison")
        timed = options.get("timed") is True
        report = built.loaded.call(
            wire.text(name, "operator name"),
            _tensors(batch, tensors),
            _symbols(symbols),
            workspace_poison=(
                None if poison is None else wire.octets(poison, "workspace poison", 4096)
            ),
            timed=timed,
        )
        if timed or poison is not None:
            _give(batch, index, report, timed=timed)

    def record(
        self,
        batch: RunningBatch,
        index: Index,
        handle: object,
        library: object,
        name: object,
        tensors: object,
        symbols: object,
    ) -> None:
        """Check, plan and bind a call, so that ``run`` only has to launch."""
        session = batch.session
        number = session.new_handle(handle, self._bounds.handles)
        if len(session.recordings) >= MAX_RECORDINGS:
            raise InputError(
                f"this session already holds {MAX_RECORDINGS} recorded calls; free one"
            )
        built = _built(batch, library)
        call = built.loaded.record(
            wire.text(name, "operator name"), _tensors(batch, tensors), _symbols(symbols)
        )
        handles = {tensor[0] for tensor in wire.array(tensors, "tensors")}
        session.recordings[number] = Recording(
            library=wire.integer(library, "handle"),
            built=built,
            call=call,
            buffers=tuple((each, session.buffers[each]) for each in handles),
            checked=session.releases,
        )

    def run(self, batch: RunningBatch, index: Index, handle: object, options: object) -> None:
        """Run a recorded call."""
        session = batch.session
        recording = session.recordings.get(handle) if type(handle) is int else None
        if recording is None:
            wire.integer(handle, "handle")
            raise InputError(
                f"no recorded call has the handle {handle}: it was freed, or recording it failed"
            )
        if type(options) is not dict:
            raise ProtocolError("the options of a run are a map")
        if recording.checked != session.releases:
            _check_held(session, recording, handle)
        timed = options.get("timed") is True if options else False
        report = recording.built.loaded.run(recording.call, timed=timed)
        if timed:
            _give(batch, index, report, timed=True)


def _built(batch: RunningBatch, library: object) -> BuiltLibrary:
    built = batch.session.libraries.get(wire.integer(library, "handle"))
    if built is None:
        raise InputError(f"no Library has the handle {library}: it was never loaded or unloaded")
    return built


def _check_held(session: ServerSession, recording: Recording, handle: object) -> None:
    if session.libraries.get(recording.library) is not recording.built:
        raise InputError(f"the Library of the recorded call {handle} was unloaded")
    for number, held in recording.buffers:
        if session.buffers.get(number) is not held:
            raise InputError(f"the recorded call {handle} uses buffer {number}: it is gone")
    recording.checked = session.releases


def _give(batch: RunningBatch, index: Index, report: CallReport, *, timed: bool) -> None:
    result: list[Any] = [None, list(report.damaged_guards)]
    batch.give(index, result)
    if timed:
        batch.timed.append((result, report))


def _symbols(symbols: object) -> dict[str, int]:
    if type(symbols) is not dict:
        raise ProtocolError("the symbols of a call are a map")
    for symbol, value in symbols.items():
        if type(symbol) is not str or type(value) is not int:
            raise ProtocolError(f"symbol {str(symbol)[:60]!r} must have an integer value")
    return symbols


def _tensors(batch: RunningBatch, tensors: object) -> list[TensorUse]:
    buffers = batch.session.buffers
    uses = []
    for tensor in wire.array(tensors, "tensors"):
        try:
            handle, byte_offset, shape, dtype = tensor
            buffer = buffers[handle].buffer
            use = TensorUse(buffer, byte_offset, tuple(shape), dtype)
        except (TypeError, ValueError, LookupError):
            _explain_tensor(batch, tensor)
            raise
        if type(byte_offset) is not int or byte_offset < 0 or type(dtype) is not str:
            _explain_tensor(batch, tensor)
        for extent in shape:
            if type(extent) is not int or extent < 0:
                _explain_tensor(batch, tensor)
        uses.append(use)
    return uses


def _explain_tensor(batch: RunningBatch, tensor: object) -> None:
    fields = wire.array(tensor, "tensor", 4)
    if len(fields) != 4:
        raise ProtocolError("a tensor is [handle, byte offset, shape, dtype]")
    handle, byte_offset, shape, dtype = fields
    for extent in wire.array(shape, "shape", MAX_RANK):
        wire.integer(extent, "extent")
    wire.integer(byte_offset, "byte offset")
    wire.text(dtype, "dtype", 40)
    batch.session.buffer(handle)
