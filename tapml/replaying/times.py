"""Measures an operator on the target and on the reference, because a port may also be too slow.

Target: the kernel times that replay measures on every test with the device's events; without
events, the host's clock around a fence. Reference: the operator's LLVM function, called in this
process on the same tests' inputs, with the model's number of threads; on a reference that is a
device, its kernels by the host's clock around a fence.

Tests with equal work (same entry, shapes and symbols) form a group. The median of each group
counts, which excludes a cold first launch, and both sides are measured on the same groups. A call
site takes the mean over its tests, an entry the sum over its call sites.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tapml.execute.arrays import Array, aligned
from tapml.execute.device import reference_failure
from tapml.execute.device_reference import DeviceReference
from tapml.replaying.run import RUNS
from tapml_rpc.remote import RemoteTensor
from tapml_targets.errors import DeviceLostError, RemoteError, TapmlError

if TYPE_CHECKING:
    from tapml.execute.interfaces import Reference
    from tapml.oracles.carved_case import CarvedCase
    from tapml.plan.graph_plan import GraphPlan, Operator
    from tapml.replaying.results import OperatorVerdict
    from tapml.suite.carved_test import CarvedTest
    from tapml_rpc.client import Session
    from tapml_targets.library import Library

DEVICE_EVENTS: Final = "device events"
HOST_CLOCK: Final = "host"

# Limits on the measuring time of a session: milliseconds per operator unless a call takes longer.
GROUPS_PER_ENTRY: Final = 4
REFERENCE_CALLS: Final = 7
REFERENCE_SECONDS: Final = 0.003
LONG_CALL_SECONDS: Final = 0.05
_WARM_CALLS: Final = 2
FENCED_CALLS: Final = 50
FENCED_SECONDS: Final = 0.003
_FENCED_ROUNDS: Final = 3

Work: TypeAlias = tuple[Any, ...]


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
        Defines how often each entry calls the operator.
    reference, session
        The two sides.
    tests
        Its carved tests.
    verdict
        Their replay on `session`; omitted tests are not counted.
    library
        The replayed Library; needed only if the device has no events.

    Returns
    -------
    dict
        ``target_ms`` and ``reference_ms`` (mean of one call over the call sites of all entries),
        ``ratio`` (target over reference), ``nbytes`` (mean of what one call reads and writes),
        ``clock`` of the target (``device events`` or ``host``), and ``entries``: per entry
        ``calls`` per run, timed ``tests``, and ``target_ms`` and ``reference_ms`` of all those
        calls together. Unknown values are None.
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
            # Running out of memory now is no verdict, because the test has just run.
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


def reference_seconds(reference: Reference, operator: Operator, test: CarvedCase) -> float:
    """Median time of one call of the reference on a test's inputs.

    The first call is a warm-up, unless it takes so long that a repetition is too expensive. At
    least two calls follow it, because a single one may have waited for threads on a busy machine.
    """
    if isinstance(reference, DeviceReference):
        return _device_seconds(reference, operator, test)
    from tapml.compiler.reference_module import tensor

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


def _device_seconds(reference: DeviceReference, operator: Operator, test: CarvedCase) -> float:
    """The same on a reference that is a device, without the copies to and from it."""
    library = reference.libraries[operator.name]
    try:
        return fenced_seconds(reference.session, library, operator, test)
    except RemoteError as error:
        raise reference_failure(reference.name, error) from error


def fenced_seconds(
    session: Session, library: Library, operator: Operator, test: CarvedCase
) -> float:
    """Time of one call on the device by the host's clock around a fence, less an empty fence's.

    Several rounds of several calls; the shortest counts, because the machine only adds time.

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


def _arguments(operator: Operator, test: CarvedCase) -> Iterator[Array]:
    """Arrays in parameter order; outputs are allocated here."""
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
    """Groups of tests with equal work; at most `GROUPS_PER_ENTRY` per entry, by increasing size."""
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
        "nbytes": statistics.fmean(map(_nbytes, tests)) if tests else None,
        "entries": entries,
    }


def _run_ms(tests: Sequence[CarvedTest], seconds: Mapping[str, float], calls: int) -> float | None:
    """Time of all call sites of one entry; one without tests takes the mean of the others."""
    sites: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        sites[test.site].append(seconds[test.id])
    if not sites:
        return None
    return _rounded(calls * statistics.fmean(map(statistics.fmean, sites.values())) * 1e3)


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
