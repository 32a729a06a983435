"""Score `tapml distributed check` on seeded mistakes: which are found, and which are named right.

Each mistake is run with each model and world, and each model and world without one. Results are
kept in FOLDER/results.jsonl; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

JOB = Path(__file__).with_name("distributed_mutants") / "job.py"
MODELS = ("layers", "images", "tables", "attention", "recurrent")
# What the right mistake's text contains; a second text where another sentence says the same of two
# ranks. Weight decay and momentum of one rank show in the second step.
MUTANTS: dict[str, tuple[str, ...]] = {
    "sum": ("summed over the ranks",),
    "divided twice": ("divided by the number of ranks twice",),
    "own": ("each rank keeps its own",),
    "first rank alone": ("gradient of rank 0 alone",),
    "one left out": ("left out", "gradient of rank 0 alone"),
    "groups": ("reduced within groups",),
    "bfloat16": ("rounded to bfloat16",),
    "float16": ("rounded to float16",),
    "clipped before": ("factor of its own before the reduction",),
    "stale": ("that of the step before",),
    "zero": ("zero or missing",),
    "negative": ("gradients are -1 times their mean",),
    "counted twice": ("factor of its own before the reduction",),
    # A quarter is what four ranks give that divide twice.
    "accumulation": ("gradients are 0.25 times their mean", "divided by the number of ranks twice"),
    "clipped by own norm": ("factor of its own",),
    "parameter ignored": ("each rank keeps its own; only for",),
    "no_sync": ("each rank keeps its own",),
    "bypasses the wrapper": ("each rank keeps its own",),
    "adrift": ("replica of rank 1 is adrift",),
    "made again": ("changes its weights",),
    "frozen moves": ("is frozen on one device and trained on the ranks",),
    "frozen by mistake": ("zero or missing", "is trained on one device and frozen on the ranks"),
    "rate times ranks": ("learning rate is multiplied by the number of ranks",),
    "rate halved": ("updates are 0.5 times",),
    "rate of one rank": ("optimizer of rank 1 takes another step",),
    "momentum of one rank": ("optimizer of rank 1 takes another step",),
    "decay of one rank": ("optimizer of rank 1 takes another step",),
    "not in the optimizer": ("is not updated on the ranks",),
    "steps twice": ("times their gradients besides the optimizer's step",),
    "samples repeat": ("repeats samples or leaves some out",),
    "samples left out": ("repeats samples or leaves some out",),
    "uneven": ("different numbers of samples",),
    "loss is a sum": ("the loss is a sum over samples",),
    "tokens": ("something is counted",),
    "samples see each other": ("samples see each other",),
}


def observable(mutant: str, world: int) -> bool:
    """Whether so many ranks can show it: two are one pair, and three count alike many tokens."""
    if mutant == "tokens":
        return world != 3
    return mutant != "groups" or (world % 2 == 0 and world > 2)


def main() -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python3 scripts/score_distributed.py /tmp/scored --models layers\n"
        "  python3 scripts/score_distributed.py /tmp/scored --seconds 600\n",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,...")
    parser.add_argument("--mutants", default=",".join(MUTANTS), metavar="NAME,...")
    parser.add_argument("--world", default="2,3,4", metavar="N,...")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no more checks after these"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    worlds = [int(each) for each in arguments.world.split(",")]
    wanted = [
        (mutant, model)
        for model in arguments.models.split(",")
        for mutant in ["", *arguments.mutants.split(",")]
    ]
    file = arguments.folder / "results.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(each["mutant"], each["model"]) for each in known}
    started = time.monotonic()
    from tapml.distributed.checking import check, open_pool

    with open_pool() as pool, file.open("a", encoding="utf-8") as out:
        for mutant, model in wanted:
            if (mutant, model) in done or time.monotonic() - started > arguments.seconds:
                continue
            path = arguments.folder / f"{model}-{mutant.replace(' ', '-') or 'clean'}.py"
            text = JOB.read_text(encoding="utf-8").partition('"""\n\n# Annotations')[2]
            path.write_text(
                f"# Annotations{text}\nMODEL = {model!r}\nMUTANT = {mutant!r}\n", encoding="utf-8"
            )
            found = check(path, worlds=worlds, engines=["own"], deadline_seconds=120, pool=pool)
            for each in found.results:
                row = {
                    "mutant": mutant,
                    "model": model,
                    "world": each.setting.world,
                    "outcome": str(each.outcome),
                    "mistake": each.mistake,
                    "reason": each.reason,
                    "published": each.published,
                }
                known.append(row)
                out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{model} {mutant or 'clean'}: {found.seconds:.1f} s", file=sys.stderr)
    print_table(known)
    return 0


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print each mistake's counts, and the totals."""
    by_mutant: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in rows:
        if not each["mutant"] or observable(each["mutant"], each["world"]):
            by_mutant[each["mutant"]].append(each)
    clean = by_mutant.pop("", [])
    print("| mistake | runs | found | named | paper's oracle |\n|---|---|---|---|---|")
    total: dict[str, int] = defaultdict(int)
    for mutant, found in by_mutant.items():
        named = [each for each in found if any(text in each["mistake"] for text in MUTANTS[mutant])]
        counts = {
            "runs": len(found),
            "found": sum(each["outcome"] not in ("equal", "not run") for each in found),
            "named": len(named),
            "published": sum(each["published"] == "inconsistent" for each in found),
        }
        for name, count in counts.items():
            total[name] += count
        print(f"| {mutant} | " + " | ".join(map(str, counts.values())) + " |")
        for each in found:
            if each not in named:
                said = each["mistake"] or each["reason"] or each["outcome"]
                print(f"{mutant}, {each['model']} x {each['world']}: {said}", file=sys.stderr)
    print(f"| all {len(by_mutant)} | " + " | ".join(map(str, total.values())) + " |")
    shared = clusters_of(rows)
    alone = sum(len(mutants) == 1 for mutants in shared.values())
    print(f"\n{len(shared)} clusters, {alone} of one seeded mistake; the others:")
    for mistake, mutants in shared.items():
        if len(mutants) > 1:
            print(f"- {mistake}: {', '.join(sorted(mutants))}")
    alarms = sum(each["outcome"] != "equal" for each in clean)
    print(f"\nwithout a mistake: {len(clean)} runs, {alarms} not equal")


def clusters_of(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The seeded mistakes behind each cluster, which is a mistake without its numbers."""
    from tapml.distributed.fuzzing.clusters import general

    found: dict[str, set[str]] = defaultdict(set)
    for each in rows:
        if each["mutant"] and each["mistake"]:
            found[general(each["mistake"])].add(each["mutant"])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
