"""Reduces a failing test while it keeps failing in the same way.

First the dynamic extents, with the same kernel; then, if the kernel is the compiler's output for
the operator, the static ones, with a new kernel for each; then the values.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from tapml.reduce.reduction import Ending, Reduction, Size
from tapml.repro.folder import Repro
from tapml_rpc.client import Session
from tapml_targets.errors import InputError, MismatchError, SetupError
from tapml_targets.installed import install_hint
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.reduce.device import ReopeningDevice
    from tapml.reduce.search import Search
    from tapml.reduce.trials import Trials
    from tapml.replaying.results import ReplayResult

Watcher = Callable[[str, int, int], None]

# Each trial of a static extent needs a compilation; values must get their share.
_STATIC_SHARE: Final = 0.4


def reduce_repro(
    repro: Repro,
    open_session: Callable[[], Session],
    *,
    seconds: float | None = None,
    recompile: bool = True,
    watcher: Watcher = lambda _doing, _tried, _kept: None,
) -> Reduction:
    """Reduce the test of a repro folder or bundle.

    Parameters
    ----------
    repro
        With the operator's definition.
    open_session
        Opens the device; called again if a candidate crashes it.
    seconds
        Time limit; None for none. When it expires, or the process is interrupted
        (KeyboardInterrupt is not raised), the best result so far is returned.
    recompile
        Whether kernels may be recompiled for smaller static extents.
    watcher
        Called before every trial with its description and the numbers of tried and kept candidates.

    Raises
    ------
    SetupError
        If the toolkit is not installed.
    InputError
        If the folder does not have the operator's definition.
    MismatchError
        If the test does not fail on this device.
    """
    definition = repro.definition
    if find_spec("tvm") is None:
        raise SetupError(
            "reducing needs float64 expectations of every smaller test, which need "
            f"the toolkit: {install_hint('host', DEFAULT_PLATFORM)}; a replay does not need it"
        )
    if definition is None:
        raise InputError(
            f"there is no definition of {repro.operator.name} (operator.tapml): write the "
            "repro folder again with `tapml offload` or `tapml replay --repro`"
        )
    from tapml.reduce.device import ReopeningDevice
    from tapml.reduce.search import Search
    from tapml.reduce.trials import Candidate, Trials

    started = time.monotonic()
    notes = []
    if repro.edited:
        notes.append(f"the kernels are the edited ones: {', '.join(repro.edited)}")
    with ReopeningDevice(open_session) as device:
        trials = Trials(definition, repro.library, repro.policy, device)
        whole = Candidate(tuple(repro.case.read_inputs()), dict(repro.case.symbols))
        first = trials.run(whole, repro.case.id)
        kind = _kind_of(first)
        if first is None or not kind:
            raise MismatchError(_nothing_to_reduce(repro, device, first))
        search = Search(
            trials,
            whole,
            first,
            first.verdict,
            None if seconds is None else started + seconds,
            lambda doing, at: watcher(doing, at.tried, at.kept),
        )
        ended = _search(search, _phases(repro, device, recompile, notes))
        result = search.result if ended == "interrupted" else _confirmed(search, notes)
        result = _named(result, f"{repro.case.id}, reduced")
        return Reduction(
            failure=replace(search.trials.failure(result), origins=repro.origins),
            before=_size(first, trials),
            after=_size(result, search.trials),
            reason_before=first.verdict.reason,
            reason_after=result.verdict.reason,
            kind=kind,
            trials=search.tried,
            kept=search.kept,
            device_losses=device.losses,
            recompiled=search.trials is not trials,
            ended=ended,
            notes=tuple(notes),
            seconds=round(time.monotonic() - started, 1),
        )


def _kind_of(result: ReplayResult | None) -> str:
    from tapml.reduce.failure_kind import failure_causes

    causes = failure_causes(result.verdict) if result is not None else ()
    return causes[0] if causes else ""


def _nothing_to_reduce(repro: Repro, device: ReopeningDevice, found: ReplayResult | None) -> str:
    said = "the device was lost or refused its inputs" if found is None else found.verdict.reason
    return (
        f"{repro.operator.name} does not fail on {device.description.name} ({said}): there is "
        f"nothing to reduce; when it was written it was {repro.status}: {repro.reason}"
    )


def _search(search: Search, phases: Sequence[Callable[[Search], None]]) -> Ending:
    """Run the phases within the time limit."""
    from tapml.reduce.search import OutOfTimeError

    try:
        for phase in phases:
            phase(search)
    except OutOfTimeError:
        return "time"
    except KeyboardInterrupt:
        return "interrupted"
    return "smallest"


def _phases(
    repro: Repro, device: ReopeningDevice, recompile: bool, notes: list[str]
) -> list[Callable[[Search], None]]:
    from tapml.compiler.compiler import Compiler
    from tapml.reduce.extent_classes import extent_classes
    from tapml.reduce.extents import shrink_symbols
    from tapml.reduce.static_extents import Recompiler
    from tapml.reduce.values import simplify_values

    def shrink_static(search: Search) -> None:
        if not recompile or not extent_classes(search.trials.operator):
            return
        # A separate cache: these kernels are not needed again, and kernels in the user's cache may
        # not be the compiler's output.
        with (
            tempfile.TemporaryDirectory(prefix="tapml-reduce-") as cache,
            Compiler(cache, workers=1) as compiler,
        ):
            recompiler = Recompiler(compiler, repro.policy, device)
            if recompiler.compiled_alike(search.trials.operator, repro.library):
                with search.share(_STATIC_SHARE):
                    recompiler.shrink(search)
            else:
                notes.append(
                    "the kernel is not this compiler's output for the operator (edited, "
                    "handwritten, or of another version), so its static extents are kept"
                )

    def once_more(search: Search) -> None:
        # Simple values may fail at smaller extents.
        kept = search.kept
        shrink_symbols(search)
        if search.kept > kept:
            simplify_values(search)

    return [shrink_symbols, shrink_static, simplify_values, once_more]


def _confirmed(search: Search, notes: list[str]) -> ReplayResult:
    """Replay the smallest test again, in case the failure is intermittent."""
    from tapml.reduce.failure_kind import same_failure

    again = search.trials.run(search.best)
    if again is not None and same_failure(search.original, again.verdict):
        return again
    notes.append("the failure is intermittent: the smallest test passed when it was run again")
    return search.result


def _named(result: ReplayResult, name: str) -> ReplayResult:
    from tapml.suite.memory_case import MemoryCase

    case = result.case
    named = replace(case, id=name) if isinstance(case, MemoryCase) else case
    return replace(result, test=name, case=named)


def _size(result: ReplayResult, trials: Trials) -> Size:
    from tapml.reduce.values import count_long, count_nonzero

    operator = trials.operator
    inputs, outputs = tuple(result.case.read_inputs()), tuple(result.case.read_outputs())
    read, written = iter(inputs), iter(outputs)
    shapes = {}
    for parameter in operator.parameters:
        if parameter.role == "inout":
            next(read)
        array = next(read if parameter.role == "input" else written)
        shapes[parameter.name] = array.shape
    return Size(
        shapes=shapes,
        elements=sum(array.size for array in (*inputs, *outputs)),
        nonzero=count_nonzero(inputs),
        long_values=count_long(inputs, tuple(parameter.dtype for parameter in operator.read)),
    )
