"""Slowness as a verdict: the longest that an operator may take.

Numbers may be right and the port still be of no use: section IV-D of the TapML paper tells of Metal
kernels that exchanged values through shared memory where the GPU has shuffles. An operator is
compared with the reference, or with the time in which the device moves the operator's bytes: no
kernel is done before it has read its inputs and written its outputs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tapml.oracles.probing import is_probe
from tapml.replaying.run import RUNS
from tapml.replaying.times import fenced_seconds, reference_seconds
from tapml.verdicts.verdict import Cause
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.platforms import language_of_dialect

if TYPE_CHECKING:
    from tapml.execute.interfaces import Reference
    from tapml.plan.graph_plan import Operator
    from tapml.replaying.results import OperatorVerdict, ReplayResult
    from tapml_rpc.client import Session
    from tapml_targets.library import Library

Against: TypeAlias = Literal["reference", "bandwidth"]
AGAINST: Final[tuple[Against, ...]] = ("reference", "bandwidth")

_MOST_BYTES: Final = 64 << 20
_COPIES: Final = 4
_ROUNDS: Final = 3


@dataclass(frozen=True)
class Pace:
    """How many times something an operator may take, and what.

    Attributes
    ----------
    most
        The number of times.
    against
        ``reference``: the operator's time there. ``bandwidth``: the time in which the device copies
        as many bytes as the operator reads and writes. A table of which a call reads a few rows
        counts whole.
    """

    most: float
    against: Against = "reference"


@dataclass
class Pacer:
    """Judges the speed of operators on one device.

    Attributes
    ----------
    pace
        The bound.
    session
        The device.
    reference
        Gives the reference; needed if `pace` is against it.
    """

    pace: Pace
    session: Session
    reference: Callable[[], Reference]

    @cached_property
    def bandwidth(self) -> float:
        """Bytes that the device reads and writes a second, measured on copies within its memory."""
        limits = self.session.device.limits
        bounds = (limits.max_buffer_bytes, limits.memory_bytes // 4, _MOST_BYTES)
        nbytes = min(each for each in bounds if each > 0)
        source, target = self.session.allocate(nbytes), self.session.allocate(nbytes)
        try:

            def run(copies: int) -> float:
                started = time.perf_counter()
                for _ in range(copies):
                    self.session.copy(source, target)
                self.session.fence()
                return time.perf_counter() - started

            self.session.fill(source, b"\0")
            run(1)
            seconds = min(run(_COPIES) for _ in range(_ROUNDS))
        finally:
            self.session.free(source)
            self.session.free(target)
        return 2 * nbytes * _COPIES / seconds

    def judged(
        self, operator: Operator, library: Library, verdict: OperatorVerdict
    ) -> OperatorVerdict:
        """A passing `verdict`, or one that says by how much the operator is too slow.

        Its largest carved test counts.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        result = _largest(verdict.results)
        if verdict.status != "pass" or result is None:
            return verdict
        try:
            seconds = self._seconds(operator, library, result)
            allowed = None
            if self.pace.against == "reference":
                allowed = reference_seconds(self.reference(), operator, result.case)
            reason = self.reason(library, seconds, allowed, _nbytes(result))
        except DeviceLostError:
            raise
        except TapmlError:
            # Running out of memory now is no verdict, because the test has just run.
            self.session.reset()
            return verdict
        if not reason:
            return verdict
        return replace(verdict, status="fail", cause=Cause.TOO_SLOW, reason=reason)

    def reason(
        self, library: Library | None, seconds: float, reference: float | None, nbytes: float
    ) -> str:
        """Why a call of `seconds` is too slow; empty if it is not.

        Parameters
        ----------
        library
            The kernels, which may explain it.
        seconds, reference
            One call, here and on the reference.
        nbytes
            What it reads and writes.
        """
        if self.pace.against == "reference":
            least, what = reference or 0.0, "the reference's"
        else:
            least = nbytes / self.bandwidth
            what = (
                f"the {least * 1e3:.4g} ms of its {nbytes / 1e6:.4g} MB at "
                f"{self.bandwidth / 1e9:.4g} GB/s"
            )
        if least <= 0 or seconds <= self.pace.most * least:
            return ""
        if self.pace.against == "reference":
            what += f" {least * 1e3:.4g} ms"
        slow = (
            f"a call takes {seconds * 1e3:.4g} ms, {seconds / least:.3g} times {what}; "
            f"--max-slowdown allows {self.pace.most:g} times"
        )
        hint = "" if library is None else vanilla(library, self.session)
        return f"{slow}; {hint}" if hint else slow

    def _seconds(self, operator: Operator, library: Library, result: ReplayResult) -> float:
        if result.timing.kernel is not None:
            return result.timing.kernel / RUNS
        return fenced_seconds(self.session, library, operator, result.case)


def vanilla(library: Library, session: Session) -> str:
    """Whether kernels wait for each other where the device's waves need not; empty if not."""
    if "subgroups" not in session.device.limits.features:
        return ""
    barriers = 0
    for module in library.modules:
        language = language_of_dialect(module.dialect)
        if language is None or module.kind != "source":
            return ""
        text = module.code.decode(errors="replace")
        if re.search(language.exchange, text):
            return ""
        barriers += len(re.findall(language.barrier, text))
    if not barriers:
        return ""
    return (
        f"its kernels exchange values through shared memory alone, with {barriers} barriers, where "
        "the device's waves have shuffles"
    )


def _largest(results: Sequence[ReplayResult]) -> ReplayResult | None:
    carved = [each for each in results if not is_probe(each.test)]
    return max(carved, key=lambda each: each.timing.nbytes, default=None)


def _nbytes(result: ReplayResult) -> int:
    return sum(each.nbytes for each in (*result.case.read_inputs(), *result.case.read_outputs()))
