"""Studies that keep every result as it comes: how one ends, and cases in processes of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tapml.cli.termination import ended_by_sigterm, exit_code_of, word_for
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml_targets.errors import TapmlError

Found = dict[str, Any]


def run_kept(name: str, work: Callable[[], int], again: str = "run it again") -> int:
    """Run a study; its exit code. Ctrl-C and SIGTERM say how it goes on, errors are one line."""
    try:
        with ended_by_sigterm():
            return work()
    except KeyboardInterrupt as interrupt:
        print(f"{word_for(interrupt)}; {again} to continue", file=sys.stderr)
        return exit_code_of(interrupt)
    except TapmlError as error:
        print(f"scripts/{name}.py: {error}", file=sys.stderr)
        return error.exit_code


def found_by_stages(
    job: str,
    cases: Mapping[str, Mapping[str, Any]],
    stage: str,
    *,
    workers: int,
    deadline: float,
    minutes: float = 0.0,
) -> Iterator[tuple[int, str, Found]]:
    """Yield the number of a case from 1 on, its name, and what its job returned.

    Parameters
    ----------
    job
        A job's name; its module is loaded before the processes are forked.
    cases
        Its arguments by name, each run in a process of its own.
    stage
        What a case that breaks is noted under.
    workers
        Processes at a time.
    deadline
        Seconds for one case.
    minutes
        None is begun later than this; 0 for no limit.
    """
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    environment = Environment(
        variables={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, preload=(job.partition(":")[0],)
    )
    names = list(cases)
    if not names:
        return
    with Pool([job], workers=workers, environment=environment) as pool:
        for at in range(0, len(names), workers):
            if time.monotonic() > until:
                return
            futures = {
                name: pool.submit(job, dict(cases[name]), deadline_seconds=deadline)
                for name in names[at : at + workers]
            }
            for number, (name, future) in enumerate(futures.items(), at + 1):
                try:
                    found = future.result()
                except TapmlError as error:  # its process died, or took too long
                    found = {"stage": stage, "broken": str(error).splitlines()[0][:300]}
                yield number, name, found
