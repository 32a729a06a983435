"""Where the time of a profiled run went, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tapml.cli.fitting_table import fitting_table
from tapml.execute.profiling import TimedRun, operator_times


def show_times(runs: Sequence[TimedRun]) -> None:
    """Print the operators of each entry, the slowest first, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    rows = operator_times(runs)
    columns = {
        "entry": [row.entry for row in rows],
        "operator": [row.operator for row in rows],
        "calls": [str(row.calls) for row in rows],
        "ms": [f"{row.nanoseconds / 1e6:.3f}" for row in rows],
        "us a call": [f"{row.nanoseconds / 1e3 / row.calls:.1f}" for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
    }
    table, _ = fitting_table(columns, console.width, spare=("us a call", "calls"))
    console.print(table)
    for entry in dict.fromkeys(run.entry for run in runs):
        these = [run for run in runs if run.entry == entry]
        kernels = sum(nanoseconds for run in these for _, nanoseconds in run.calls) / 1e6
        host = sum(run.seconds for run in these) * 1e3
        times = f"{len(these)} run{'s' * (len(these) > 1)}"
        console.print(f"{entry}: {kernels:.1f} ms in kernels of {host:.1f} ms, {times}")
