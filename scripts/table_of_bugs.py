"""Run the bugs of D3's table III that show on this machine, and print what is found of each."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

JOBS = Path(__file__).with_name("paper_bugs")
_TABLES = """
import torch
from tests.distributed.jobs import recommendation
from tests.distributed.jobs.recommendation import *
"""
_QUANTIZED = {"sharder": ["quantized"], "sharding": ["TW"], "kernel": ["fused"], "device": ["cpu"]}
_FLOAT16 = {"weights": ["int8"], "activations": ["float16"]}


@dataclass(frozen=True)
class Bug:
    """A bug as a job: a file of `paper_bugs` with `fault`, or `code`."""

    numbers: str
    kind: str
    job: str = ""
    fault: str = ""
    code: str = ""
    engine: str = "own"
    worlds: tuple[int, ...] = (2, 4)
    options: dict[str, list[str]] = field(default_factory=dict)
    pruned: bool = False


BUGS = (
    Bug(
        "1",
        "alive by choice",
        code=_TABLES
        + "from torchrec.distributed.comm_ops import set_gradient_division\n"
        + "set_gradient_division(False)\n",
        engine="torchrec",
        worlds=(2, 3, 4, 8),
        options={"sharder": ["EBCS"], "sharding": ["TW", "RW", "CW", "DP"]},
    ),
    Bug("2", "seeded", "normalized.py", "not synchronized"),
    Bug("3", "seeded", "weighted.py", "weights dropped"),
    Bug("4", "alive", "normalized.py", engine="ddp"),
    Bug("5", "seeded", "weighted.py", "int8"),
    Bug("6", "seeded", "weighted.py", "scaled"),
    Bug("7", "alive", "replicas.py", engine="mirrored", worlds=(2,)),
    Bug("10", "seeded", "normalized.py", "local variances"),
    Bug("11", "seeded", "weighted.py", "NaN at 4"),
    Bug("12", "seeded", "weighted.py", "NaN"),
    Bug("13", "fixed", "replicas.py", "synchronized", engine="mirrored", worlds=(2,)),
    Bug(
        "15",
        "alive",
        code=_TABLES + "recommendation.BAGS = True\nrecommendation.DIMENSIONS = (512, 768)\n",
        engine="torchrec",
        worlds=(1, 2),
        options={"sharder": ["EBS"], "sharding": ["CW"]},
    ),
    Bug(
        "18",
        "alive",
        code=_TABLES + "recommendation.BAGS = True\n",
        engine="torchrec",
        worlds=(2,),
        options={
            "sharder": ["EBS"],
            "sharding": ["TW"],
            "kernel": ["fused"],
            "weights": ["float32"],
            "activations": ["float32"],
            "device": ["cpu"],
        },
        pruned=True,
    ),
    Bug("16", "fixed", code=_TABLES, engine="torchrec", options=_QUANTIZED),
    Bug("20", "fixed", code=_TABLES, engine="torchrec", options=_QUANTIZED | _FLOAT16),
    Bug(
        "21",
        "alive",
        code=_TABLES,
        engine="torchrec",
        worlds=(2,),
        options=_QUANTIZED | {"activations": ["int8"], "weights": ["int8"]},
        pruned=True,
    ),
)


def main() -> int:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example:\n  python3 scripts/table_of_bugs.py --bug 1,4\n"
    )
    parser.add_argument("--bug", default="", metavar="N,...", help="bugs (default: all)")
    arguments = parser.parse_args()
    wanted = arguments.bug.split(",") if arguments.bug else [each.numbers for each in BUGS]
    import tempfile

    from tapml.distributed.checking import check
    from tapml_targets.errors import TapmlError

    with tempfile.TemporaryDirectory() as place:
        for bug in BUGS:
            if bug.numbers not in wanted:
                continue
            text = bug.code or (JOBS / bug.job).read_text(encoding="utf-8")
            if bug.job:
                name = "SYNCHRONIZED" if bug.job == "replicas.py" else "FAULT"
                value = bug.fault == "synchronized" if name == "SYNCHRONIZED" else bug.fault
                text += f"\n{name} = {value!r}\n"
            path = Path(place, f"bug{bug.numbers}.py")
            path.write_text(text, encoding="utf-8")
            try:
                found = check(
                    path,
                    worlds=bug.worlds,
                    engines=[bug.engine],
                    options=bug.options,
                    pruned=bug.pruned,
                    deadline_seconds=300,
                )
            except TapmlError as error:
                print(f"| {bug.numbers} | {bug.kind} | not run: {error} |", flush=True)
                continue
            for each in found.results:
                print(
                    f"| {bug.numbers} | {bug.kind} | {each.setting.name} | {each.outcome} | "
                    f"{each.first_wrong or '-'} | {each.mistake or each.reason[:90]} | "
                    f"{each.published or '-'} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
