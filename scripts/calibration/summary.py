"""What the measurements say: a table, and where a limit is too near to right kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from scripts.calibration.measuring import ALLOWED, APPROXIMATE, RIGHT, Row

SAFETY: Final = 4.0
"""A limit is at least this many times the largest ratio of a right kernel."""
ALLOWANCE: Final = 1.0
"""And this many times the OpenCL specification's bound."""

_NOT_WRONG: Final = (RIGHT, ALLOWED, APPROXIMATE)
_HEAD: Final = (
    "| dtype | class | right | largest ratio | share of limit | where "
    "| wrong | pass / degraded / fail | of the passing, found by a probe | smallest ratio |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def table(rows: Sequence[Row]) -> str:
    """One line per dtype and operator class, in Markdown."""
    return "\n".join([_HEAD, *(_line(group) for group in groups(rows))])


def groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows by dtype and class."""
    for key in dict.fromkeys((row.dtype, row.operator_class) for row in rows):
        yield [row for row in rows if (row.dtype, row.operator_class) == key]


def _line(group: Sequence[Row]) -> str:
    right = [row for row in group if row.kernel == RIGHT]
    wrong = [row for row in group if row.kernel not in _NOT_WRONG]
    nearest = max(right, key=lambda row: row.share)
    missed = [row for row in wrong if row.ratio <= row.passing]
    degraded = [row for row in wrong if row.passing < row.ratio <= row.degraded]
    probed = [row for row in missed if row.probe_share > 1]
    smallest = f"{min(row.ratio for row in wrong):.3g}" if wrong else ""
    return (
        f"| {nearest.dtype} | {nearest.operator_class} | {len(right)} | {nearest.ratio:.3g} "
        f"| {nearest.share:.2f} | {nearest.operator}, {nearest.where} | {len(wrong)} "
        f"| {len(missed)} / {len(degraded)} / {len(wrong) - len(missed) - len(degraded)} "
        f"| {len(probed)} | {smallest} |"
    )


def missed(rows: Sequence[Row]) -> Iterator[str]:
    """Wrong kernels that neither their ratio nor a probe detects."""
    for row in rows:
        if row.kernel in _NOT_WRONG or row.ratio > row.passing or row.probe_share > 1:
            continue
        yield (
            f"{row.dtype} {row.operator_class}: {row.operator}, {row.kernel}: ratio "
            f"{row.ratio:.3g}, {row.share:.2g} times its limit, {row.probes} probes"
        )


def shortcomings(rows: Sequence[Row]) -> list[str]:
    """Limits below their safety factor, and right kernels that fail a probe."""
    found = []
    for group in groups(rows):
        for kernel, factor in ((RIGHT, SAFETY), (ALLOWED, ALLOWANCE)):
            some = [row for row in group if row.kernel == kernel]
            if not some:
                continue
            worst = max(some, key=lambda row: row.share)
            if worst.share * factor > 1:
                found.append(
                    f"{worst.dtype} {worst.operator_class}: {worst.operator} on {worst.where} "
                    f"({kernel}) has the ratio {worst.ratio:.3g} of {worst.passing:.3g}: the limit "
                    f"should be {factor * worst.share:.2f} times as large"
                )
        found += [
            f"{row.dtype} {row.operator_class}: a probe accuses {row.operator} on {row.where}, "
            f"which is right: {row.probe_share:.2g} times its limit"
            for row in group
            if row.kernel == RIGHT and row.probe_share > 0.5
        ]
    return found
