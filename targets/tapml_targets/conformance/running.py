"""Runs the cases on a device: in a child process, since a driver may crash or hang.

If it does, each case runs in a process of its own, so that one fault costs one case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from tapml_targets.child_probe import ask_child
from tapml_targets.conformance import launches, memory, refusals
from tapml_targets.conformance.bench import Bench, NotOfferedError
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.platforms import load_driver_module

Status: TypeAlias = Literal["pass", "fail", "not run"]
Case: TypeAlias = Callable[[Bench], None]

SECONDS: Final = 300.0
"""Time for all cases of a device."""
_ALLOW: Final = "TAPML_ALLOW_SHARED_LIBRARIES"
CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        case.__name__.replace("_", " "): case
        for case in (*memory.CASES, *launches.CASES, *refusals.CASES)
    }
)
"""All cases by name."""


@dataclass(frozen=True)
class CaseResult:
    """How a case went: `reason` says in numbers why it fails or was not run."""

    case: str
    status: Status
    reason: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run_cases(bench: Bench, names: Sequence[str] = ()) -> list[CaseResult]:
    """Run cases in this process; all of them if none is named."""
    return [_run(name, bench) for name in names or CASES]


def _run(name: str, bench: Bench) -> CaseResult:
    started = time.perf_counter()
    status: Status = "pass"
    reason = ""
    try:
        CASES[name](bench)
    except NotOfferedError as error:
        status, reason = "not run", str(error)
    except TapmlError as error:
        status, reason = "fail", str(error)
    except Exception as error:
        # Any other exception of a driver is a fault as well: it should have been a TapmlError.
        status, reason = "fail", f"{type(error).__name__}: {error}"
    first = next(iter(reason.splitlines()), "")[:300]
    return CaseResult(name, status, first, time.perf_counter() - started)


def answer(platform: str, index: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """What the child process answers."""
    module = load_driver_module(platform)
    driver = module.open_device(module.list_devices()[index])
    bench = Bench(driver, module.open_device)
    return [result.to_json() for result in run_cases(bench, names)]


def conformance(description: DeviceDescription, *, seconds: float = SECONDS) -> list[CaseResult]:
    """Run all cases on a device of this machine.

    Parameters
    ----------
    description
        The device.
    seconds
        Time for all of them; a case that runs by itself has as much.
    """
    results, _ = _asked(description, (), seconds)
    if results is not None:
        return results
    found = []
    for name in CASES:
        alone, problem = _asked(description, (name,), seconds)
        found += alone or [CaseResult(name, "fail", problem)]
    return found


def _asked(
    description: DeviceDescription, names: Sequence[str], seconds: float
) -> tuple[list[CaseResult] | None, str]:
    # The modules are this machine's own.
    environ = dict(os.environ) | {_ALLOW: "1"}
    arguments = ["conformance", description.platform, str(description.index), *names]
    given, problem = ask_child(arguments, seconds, environ)
    if given is None or "problem" in given:
        return None, problem or str((given or {}).get("problem"))
    return [CaseResult(**each) for each in given["cases"]], ""
