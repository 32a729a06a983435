"""How long one operator takes, on the target and on the reference: a port also fails by being slow.

Target: the kernel times that replay measures on every test by the device's own events; where a
device has none, the host's clock around a fence. Reference: the operator's LLVM function, called in
this process on the same tests' inputs, with the threads the model uses.

Tests are taken together where they do the same work (same entry, shapes and symbols): of each such
group the median counts, so that a cold first launch does not, and both sides are measured on the
same groups. A call site takes the mean over its tests, an entry the sum over its call sites.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tapml.carving.replay_run import RUNS
from tapml.execute.arrays import Array, aligned
from tapml_rpc.remote import RemoteTensor
from tapml_targets.errors import DeviceLostError, TapmlError

if TYPE_CHECKING:
    from tapml.carving.carved_test import CarvedTest
    from tapml.carving.replay_results import OperatorVerdict
    from tapml.execute.interfaces import Reference
    from tapml.graph.plan import GraphPlan, Operator
    from tapml.offload.workbench import Workbench
    from tapml_rpc.client import Session
    from tapml_targets.library import Library

DEVICE_EVENTS: Final = "device events"
HOST_CLOCK: Final = "host"

# Bounds on what measuring adds to a session: milliseconds an operator unless a call takes longer.
GROUPS_PER_ENTRY: Final = 4
REFERENCE_CALLS: Final = 7
REFERENCE_SECONDS: Final = 0.003
LONG_CALL_SECONDS: Final = 0.05
_WARM_CALLS: Final = 2
FENCED_CALLS: Final = 50
FENCED_SECONDS: Final = 0.003
_FENCED_ROUNDS: Final = 3

Work: TypeAlias = tuple[Any, ...]


def operator_times(
    bench: Workbench,
    operator: Operator,
    tests: Sequence[CarvedTest],
    verdict: OperatorVerdict,
    *,
    library: Library | None = None,
) -> dict[str, Any]:
    """Time of an operator on both sides, as strict JSON data; see :func:`measure`."""
    plan, reference = bench.imported.plan, bench.executor.reference
    return measure(plan, reference, bench.session, operator, tests, verdict, library=library)


def measure(
    plan: GraphPlan,
    reference: Reference,
    session: Session,
    operator: Operator,
    tests: Sequence[CarvedTest],
    verdict: OperatorVerdict,
    *,
    library: Library | None = None,
) -> dict[str, Any]:
    """Time of an operator on both sides, as strict JSON data.

    Parameters
    ----------
    plan
        Says how often each entry calls the operator.
    reference, session
        The two sides.
    operator
        The operator.
    tests
        Its carved tests.
    verdict
        Their replay on `session`; tests it did not come to are not counted.
    library
        What was replayed; needed only where the device has no events.

    Returns
    -------
    dict
        ``target_ms`` and ``reference_ms`` (mean of one call over the call sites of all entries),
        ``ratio`` (target over reference), ``clock`` of the target (``device events`` or ``host``),
        and ``entries``: per entry ``calls`` in one run of it, ``tests`` that were timed, and
        ``target_ms`` and ``reference_ms`` of all those calls together. What is not known is None.
    """
    carved = {test.id: test for test in tests}
    kernels = {
        result.test: result.timing.kernel / RUNS
        for result in verdict.results
        if result.test in carved and result.timing.kernel is not None
    }
    clock = DEVICE_EVENTS
    groups = _sample(carved[name] for name in kernels)
    if not kernels and library is not None:
        clock = HOST_CLOCK
        ran = {each.test for each in verdict.results if each.verdict.status != "not run"}
        groups = _sample(test for test in tests if test.id in ran)
        try:
            for first, *_ in groups:
                kernels[first.id] = fenced_seconds(session, library, operator, first)
        except DeviceLostError:
            raise
        except TapmlError:
            # It ran a moment ago; that there is no room for a second time is no verdict about it.
            session.reset()
            groups, kernels = [], {}
    on_target: dict[str, float] = {}
    on_reference: dict[str, float] = {}
    for group in groups:
        names = [test.id for test in group]
        here = statistics.median(kernels[name] for name in names if name in kernels)
        there = reference_seconds(reference, operator, group[0])
        on_target |= dict.fromkeys(names, here)
        on_reference |= dict.fromkeys(names, there)
    counted = [test for group in groups for test in group]
    return _summarise(plan, operator, counted, on_target, on_reference) | {"clock": clock}


def reference_seconds(reference: Reference, operator: Operator, test: CarvedTest) -> float:
    """Median time of one call of the reference on a test's inputs.

    The first call warms up, unless it takes so long that others are too much. There are two others
    at least: on a busy machine one alone may have waited for its threads.
    """
    from tapml.compiler.reference import tensor

    function = reference[operator.name]
    lent = [
        tensor(array, parameter.dtype)
        for parameter, array in zip(operator.parameters, _arguments(operator, test), strict=True)
    ]
    symbols = dict(test.symbols)
    seconds: list[float] = []
    while len(seconds) < REFERENCE_CALLS:
        started = time.perf_counter()
        function(*lent, symbols=symbols)
        seconds.append(time.perf_counter() - started)
        if seconds[0] > LONG_CALL_SECONDS:
            break
        if len(seconds) > _WARM_CALLS and sum(seconds[1:]) > REFERENCE_SECONDS:
            break
    return statistics.median(seconds[1:] or seconds)


def fenced_seconds(
    session: Session, library: Library, operator: Operator, test: CarvedTest
) -> float:
    """Time of one call on the device by the host's clock around a fence, less an empty fence's.

    Of several rounds of several calls the shortest: what comes on top is the machine's.

    Raises
    ------
    TapmlError
        If a command fails on the device.
    """
    remote = session.upload(library)
    tensors = []
    for parameter, array in zip(operator.parameters, _arguments(operator, test), strict=True):
        buffer = session.allocate(array.nbytes)
        if parameter.role != "output":
            session.write(buffer, array)
        tensors.append(RemoteTensor(buffer, 0, array.shape, parameter.dtype))

    def run(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            session.call(remote, operator.name, tensors, test.symbols)
        session.fence()
        return time.perf_counter() - started

    try:
        run(1)
        calls = int(min(max(FENCED_SECONDS / run(1), 1), FENCED_CALLS))
        busy = min(run(calls) for _ in range(_FENCED_ROUNDS))
        idle = min(run(0) for _ in range(_FENCED_ROUNDS))
        return max(busy - idle, 0.0) / calls
    finally:
        for each in tensors:
            session.free(each.buffer)


def _arguments(operator: Operator, test: CarvedTest) -> Iterator[Array]:
    """Arrays in parameter order; what is written is the caller's own memory."""
    read, written = iter(test.read_inputs()), iter(test.read_outputs())
    for parameter in operator.parameters:
        if parameter.role == "input":
            yield aligned(next(read))
        elif parameter.role == "inout":
            next(written)
            yield aligned(np.array(next(read)))
        else:
            yield aligned(np.empty_like(next(written)))


def _sample(tests: Iterable[CarvedTest]) -> list[list[CarvedTest]]:
    """Groups of tests that do the same work; of each entry at most so many, from small to large."""
    by_entry: dict[str, dict[Work, list[CarvedTest]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        by_entry[test.entry][_work(test)].append(test)
    chosen = []
    for works in by_entry.values():
        groups = sorted(works.values(), key=lambda group: _nbytes(group[0]))
        count = min(len(groups), GROUPS_PER_ENTRY)
        last = max(count - 1, 1)
        chosen += [groups[index * (len(groups) - 1) // last] for index in range(count)]
    return chosen


def _work(test: CarvedTest) -> Work:
    shapes = tuple(tensor.shape for tensor in (*test.inputs, *test.outputs))
    return (shapes, tuple(sorted(test.symbols.items())))


def _nbytes(test: CarvedTest) -> int:
    return sum(tensor.nbytes for tensor in (*test.inputs, *test.outputs))


def _summarise(
    plan: GraphPlan,
    operator: Operator,
    tests: Sequence[CarvedTest],
    target: Mapping[str, float],
    reference: Mapping[str, float],
) -> dict[str, Any]:
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in plan.entries.items():
        calls = sum(call.operator == operator.name for call in entry.calls)
        if calls:
            own = [test for test in tests if test.entry == name]
            entries[name] = {
                "calls": calls,
                "tests": len(own),
                "target_ms": _run_ms(own, target, calls),
                "reference_ms": _run_ms(own, reference, calls),
            }
    timed = [each for each in entries.values() if each["tests"]]
    count = sum(each["calls"] for each in timed)
    target_ms = sum(each["target_ms"] for each in timed)
    reference_ms = sum(each["reference_ms"] for each in timed)
    return {
        "target_ms": _rounded(target_ms / count) if count else None,
        "reference_ms": _rounded(reference_ms / count) if count else None,
        "ratio": _rounded(target_ms / reference_ms) if reference_ms else None,
        "entries": entries,
    }


def _run_ms(tests: Sequence[CarvedTest], seconds: Mapping[str, float], calls: int) -> float | None:
    """All call sites of one entry together; one without tests takes the mean of the others."""
    sites: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        sites[test.site].append(seconds[test.id])
    if not sites:
        return None
    return _rounded(calls * statistics.fmean(map(statistics.fmean, sites.values())) * 1e3)


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
