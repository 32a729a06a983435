"""One side of a comparison: the outcome of a replay or a session, strictly checked.

The inputs are the JSON of ``tapml replay --json`` and session folders. They are not trusted: a
field of the wrong type is an error that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast, get_args

from tapml.verdicts.verdict import Status
from tapml_targets.errors import InputError

REPLAY_FORMATS: Final = ("tapml-replay/1", "tapml-replay/2")
SESSION_FORMATS: Final = ("tapml-report/1", "tapml-report/2", "tapml-report/3")
SESSION_REPORT: Final = "report.json"
MAX_BYTES: Final = 512 << 20
_STATUSES: Final = get_args(Status)
_NOT_FINITE: Final = ("inf", "-inf", "nan")


@dataclass(frozen=True)
class TestOutcome:
    """One carved test: its verdict, its ratio, and seconds in kernels if known."""

    status: Status
    ratio: float
    kernel_seconds: float | None


@dataclass(frozen=True)
class OperatorOutcome:
    """One operator.

    Attributes
    ----------
    status, ratio, reason
        From its worst test; ``not run`` if it stayed on the source or was not reached.
    tests
        Tests by id; empty for a session, which does not list them.
    count
        Number of tests.
    kernel_seconds
        Time in kernels for one pass over the tests; None if unknown.
    """

    status: Status
    ratio: float
    reason: str
    tests: Mapping[str, TestOutcome] = field(default_factory=dict)
    count: int = 0
    kernel_seconds: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a replay or a session.

    Attributes
    ----------
    path
        The file or folder it was read from.
    kind
        ``replay`` or ``session``.
    status
        The overall status.
    facts
        Device, driver, compilers, policy, suite, ..., by name.
    operators
        Operators by name, in order.
    whole_model
        The verdict on the complete model; None for a replay.
    """

    path: str
    kind: str
    status: str
    facts: Mapping[str, str]
    operators: Mapping[str, OperatorOutcome]
    whole_model: Status | None = None


def read_outcome(path: str | Path) -> Outcome:
    """Read one side.

    Raises
    ------
    InputError
        If `path` is neither a replay's JSON nor a session with a report, or is damaged.
    """
    given = Path(path)
    file = given / SESSION_REPORT if given.is_dir() else given
    wanted = "expected the output of `tapml replay --json` or the folder of a session"
    if given.is_dir() and not file.is_file():
        raise InputError(f"{given} is a folder without {SESSION_REPORT}: {wanted}")
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file} ({error.strerror}): {wanted}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} is larger than {MAX_BYTES} bytes: {wanted}")
    try:
        plain = json.loads(data, parse_constant=_no_constant)
        found = plain["format"]
        if found in REPLAY_FORMATS:
            return _replay(str(given), plain)
        if found in SESSION_FORMATS:
            return _session(str(given), plain)
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON ({error}): {wanted}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} cannot be read ({error!r}): {wanted}") from error
    raise InputError(f"{file} has format {found!r}: {wanted}")


def _replay(path: str, plain: Mapping[str, Any]) -> Outcome:
    device = plain["device"]
    versions = {str(name): _text(number) for name, number in plain["versions"].items()}
    return Outcome(
        path,
        "replay",
        _status(plain["status"]),
        {
            "suite": _text(plain["suite"]),
            **_device(device, plain["fingerprint"]),
            "policy": _text(plain["policy_hash"]),
            **dict(sorted(versions.items())),
        },
        {_text(each["operator"]): _operator(each) for each in _rows(plain["operators"])},
    )


def _operator(plain: Mapping[str, Any]) -> OperatorOutcome:
    tests = {
        _text(each["test"]): TestOutcome(
            _status(each["status"]), _number(each["ratio"]), _optional(each["kernel_seconds"])
        )
        for each in _rows(plain["tests"])
    }
    known = [test.kernel_seconds for test in tests.values() if test.kernel_seconds is not None]
    return OperatorOutcome(
        _status(plain["status"]),
        _number(plain["worst_ratio"]),
        _text(plain["reason"]),
        tests,
        len(tests),
        # Each test runs twice, with two poison values.
        sum(known) / 2 if tests and len(known) == len(tests) else None,
    )


def _session(path: str, plain: Mapping[str, Any]) -> Outcome:
    target = plain["target"]
    model = plain["model"]
    whole: Status = "not run" if plain["final"] is None else _status(plain["final"]["status"])
    facts = {
        "model": _text(model["name"]),
        "weights": _text(model["weights_hash"]),
        "dtype": _text(model["dtype"]),
        **_device(target, target["fingerprint"]),
        "policy": _text(plain["policy"]["hash"]),
        "tapml": _text(plain["tapml"]),
        "whole model": whole,
    }
    operators = {_text(each["name"]): _moved(each) for each in _rows(plain["operators"])}
    return Outcome(path, "session", _text(plain["outcome"]["status"]), facts, operators, whole)


def _moved(plain: Mapping[str, Any]) -> OperatorOutcome:
    """An operator of a session; those on the source count as not run."""
    state, replay = _text(plain["state"]), plain["replay"]
    status: Status = "not run"
    if state == "moved":
        status = "pass"
    elif state == "failed":
        found = _status(replay.get("status", "fail"))
        # Its tests may pass although the complete model fails.
        status = "fail" if found in ("pass", "not run") else found
    count = plain["tests"]["total"]
    milliseconds = _optional(plain["target_ms"])
    return OperatorOutcome(
        status,
        0.0 if plain["worst_ratio"] is None else _number(plain["worst_ratio"]),
        _text(plain["reason"]) or state,
        {},
        int(_number(count)),
        None if milliseconds is None else milliseconds * 1e-3 * _number(count),
    )


def _device(plain: Mapping[str, Any], fingerprint: object) -> dict[str, str]:
    return {
        "device": _text(plain["name"]),
        "platform": f"{_text(plain['platform'])}, {_text(plain['vendor_platform'])}",
        "driver": _text(plain["driver_version"]),
        "fingerprint": _text(fingerprint),
    }


def _rows(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r:.80}")
    return value


def _status(value: object) -> Status:
    if value not in _STATUSES:
        raise ValueError(f"expected a status of {', '.join(_STATUSES)}, got {value!r:.80}")
    return cast("Status", value)


def _number(value: object) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r:.80}")
    return float(value)


def _optional(value: object) -> float | None:
    number = None if value is None else _number(value)
    return number if number is None or math.isfinite(number) else None


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
