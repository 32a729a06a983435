"""Makes a failing test smaller while it keeps failing in the same way.

First the dynamic extents, with the very same kernel; then, where the kernel is what the compiler
makes of the operator, the static ones, with a kernel compiled anew for each; then the values.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from tapml.carving.repro_folder import Repro
from tapml.reduce.reduction import Ending, Reduction, Size
from tapml_rpc.client import Session
from tapml_targets.errors import InputError, MismatchError, SetupError
from tapml_targets.installed import install_hint

if TYPE_CHECKING:
    from tapml.carving.replay_results import ReplayResult
    from tapml.reduce.device import ReopeningDevice
    from tapml.reduce.search import Search
    from tapml.reduce.trials import Trials

Watcher = Callable[[str, int, int], None]

# Each trial of a static extent takes a compilation; values must get their turn.
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
        Opens the device; called again where a candidate takes it down.
    seconds
        Budget; None for as long as it takes. The best so far is the result when it is spent, and
        when the process is interrupted (KeyboardInterrupt is not raised then).
    recompile
        Whether kernels may be compiled anew for smaller static extents.
    watcher
        Called before every trial with what is tried, how many were tried and how many kept.

    Raises
    ------
    SetupError
        If the toolkit is not installed.
    InputError
        If the folder holds no definition of the operator.
    MismatchError
        If the test does not fail on this device.
    """
    definition = repro.definition
    if find_spec("tvm") is None:
        raise SetupError(
            "reducing needs float64 expectations of every smaller test, which are computed with "
            f"the toolkit: {install_hint('host', 'opencl')}; a replay does not need it"
        )
    if definition is None:
        raise InputError(
            f"there is no definition of {repro.operator.name} in it (operator.tapml): write the "
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
    from tapml.reduce.failure_kind import kinds_of

    kinds = kinds_of(result.verdict) if result is not None else ()
    return kinds[0] if kinds else ""


def _nothing_to_reduce(repro: Repro, device: ReopeningDevice, found: ReplayResult | None) -> str:
    said = "the device was lost or refused its inputs" if found is None else found.verdict.reason
    return (
        f"{repro.operator.name} does not fail on {device.description.name} ({said}): there is "
        f"nothing to reduce; when it was written it was {repro.status}: {repro.reason}"
    )


def _search(search: Search, phases: Sequence[Callable[[Search], None]]) -> Ending:
    """Go through the phases as far as time allows."""
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
        # A cache of its own: nobody asks for these kernels again, and a kernel that was put into
        # the user's is not what the compiler makes.
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
                    "the kernel is not what the compiler here makes of the operator (edited, "
                    "written by hand, or of other versions), so its static extents stay"
                )

    def once_more(search: Search) -> None:
        # Simple values may fail at smaller extents still.
        kept = search.kept
        shrink_symbols(search)
        if search.kept > kept:
            simplify_values(search)

    return [shrink_symbols, shrink_static, simplify_values, once_more]


def _confirmed(search: Search, notes: list[str]) -> ReplayResult:
    """The smallest test replayed once more, in case the failure comes and goes."""
    from tapml.reduce.failure_kind import same_failure

    again = search.trials.run(search.best)
    if again is not None and same_failure(search.original, again.verdict):
        return again
    notes.append("the failure comes and goes: the smallest test passed when it was run once more")
    return search.result


def _named(result: ReplayResult, name: str) -> ReplayResult:
    from tapml.carving.memory_case import MemoryCase

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
