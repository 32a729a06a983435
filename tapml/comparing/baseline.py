"""The gate: what a comparison found before is accepted, and anything else is new.

A baseline keeps, for each pair, its verdict, layer, blamed backend and the share of instances that
triggered. A pair that differs in the same way, on no more instances, passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tapml.comparing.result import NOT_FAULTS, Comparison, PairResult
from tapml.durable.files import write_bytes
from tapml_targets.errors import InputError

_LARGEST_BYTES: Final = 1 << 24


class AcceptedPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pair may show."""

    backends: tuple[str, str]
    status: str
    layer: str
    blamed: str
    share: Annotated[float, Meta(ge=0, le=1)]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pairs of one model."""

    pairs: tuple[AcceptedPair, ...]
    format: Literal["tapml-compare-baseline/1"] = "tapml-compare-baseline/1"


def write_baseline(comparison: Comparison, file: Path) -> None:
    """Accept what a comparison found.

    Raises
    ------
    SetupError
        If the file cannot be written.
    """
    baseline = Baseline(tuple(map(_accepted, comparison.pairs)))
    write_bytes(file, msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n")


def read_baseline(file: Path) -> Baseline:
    """Read what :func:`write_baseline` wrote.

    Raises
    ------
    InputError
        If there is no such file, or it is something else.
    """
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{file} is larger than {_LARGEST_BYTES} bytes: it is no baseline")
        return msgspec.json.decode(file.read_bytes(), type=Baseline)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); --write-baseline {file} makes one"
        ) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{file} is no baseline of tapml compare: {error}") from error


def new_findings(comparison: Comparison, baseline: Baseline | None) -> list[str]:
    """A line for each pair that is at fault in another way than was accepted, or on more instances.

    A pair that the baseline does not have is accepted only if nobody is at fault; without a
    baseline none is.
    """
    known = {frozenset(each.backends): each for each in (baseline.pairs if baseline else ())}
    lines = []
    for pair in comparison.pairs:
        now, before = _accepted(pair), known.get(frozenset(pair.backends))
        if now.status in NOT_FAULTS:
            continue
        what = f"{' / '.join(now.backends)}: {_described(now)}"
        if baseline is None:
            lines.append(f"{what}: {pair.reason}")
        elif before is None:
            lines.append(f"{what}; the baseline has no such pair")
        elif (now.status, now.layer, now.blamed) != (before.status, before.layer, before.blamed):
            lines.append(f"{what}; the baseline has {_described(before)}")
        elif now.share > before.share:
            lines.append(
                f"{what} on {now.share:.2%} of the instances; the baseline has {before.share:.2%}"
            )
    return lines


def _accepted(pair: PairResult) -> AcceptedPair:
    return AcceptedPair(
        pair.backends, pair.status, pair.layer, pair.blamed, float(pair.metrics.get("share", 0.0))
    )


def _described(pair: AcceptedPair) -> str:
    layer = f" at {pair.layer}" if pair.layer else ""
    return f"{pair.status}{layer}{f' by {pair.blamed}' if pair.blamed else ''}"
