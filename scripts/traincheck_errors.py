"""Runs TrainCheck 0.2.0 on the re-created errors and on their twins.

TRAINCHECK_PYTHON=tc/bin/python python3 scripts/traincheck_errors.py

The interpreter is that of scripts/bench_traincheck.py. TrainCheck rewrites one file, so each case
becomes a script of its own; ranks are started by a shell script, which TrainCheck rewrites too. It
learns from a right run with seed 1, and checks the twin and the error with seed 3. A case takes
about a minute of the processor. Results are kept as they come, in
scripts/training_errors/traincheck.jsonl, and a second start goes on behind them.
scripts/invariants_peers.py --write puts them into its table.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.bench_traincheck import cpu_seconds
from scripts.training_errors import one_process, ranks
from scripts.training_errors.case import CASES, RIGHT_SEEDS, TWIN_SEED, Case

RESULTS: Final = ROOT / "scripts" / "training_errors" / "traincheck.jsonl"
# Those of small models first, and of ranks last: they take least and most.
ORDER: Final = ("B5", "B11", "B12", "B7", "B19", "B13", "DS-6772", "B15", "AC-2665", "B4", "B20")


class _Alone(ast.NodeTransformer):
    """A module of cases with one of them, in the form that TrainCheck finds a model in."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        """Leave out what is not installed there, and what TrainCheck's lines would precede."""
        return None if (node.module or "").startswith(("scripts", "tapml", "__future__")) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef | None:
        """Leave out the other cases, and annotations, which need what is left out."""
        case = [ast.unparse(each).startswith("case(") for each in node.decorator_list]
        if any(case) and node.name != self._name:
            return None
        node.decorator_list = [] if any(case) else node.decorator_list
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | list[ast.Assign]:
        """``data, model = ...`` as two assignments."""
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return node
        return [
            ast.Assign([one], other, lineno=node.lineno)
            for one, other in zip(target.elts, value.elts, strict=True)
        ]

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """A parameter without its type."""
        node.annotation = None
        return node


def script_of(case: Case, seed: int, *, buggy: bool) -> str:
    """A case as a script of its own; that of ranks finds its rank in the environment."""
    parts = []
    for module in (one_process,) if case.ranks == 1 else (one_process, ranks):
        source = Path(str(module.__file__)).read_text("utf-8")
        alone = _Alone(case.run.__name__).visit(ast.parse(source))
        parts.append(ast.unparse(ast.fix_missing_locations(alone)))
    parts += ["def set_meta(**values):\n    pass", "torch.set_num_threads(1)"]
    if case.ranks > 1:
        parts.append("dist.init_process_group('gloo')")
    return "\n".join([*parts, f"{case.run.__name__}({seed}, {buggy})", ""])


def _launcher(script: Path, ranks: int) -> str:
    """A shell script that starts all ranks; the first one's exit code is its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE={ranks}"
    others = [f"RANK={rank} python {script.name} &" for rank in range(1, ranks)]
    return "\n".join(
        [job, *others, f"RANK=0 python {script.name}", "code=$?; wait; exit $code", ""]
    )


def study(case: Case, tools: Path, folder: Path) -> dict[str, Any]:
    """What TrainCheck learns and finds."""
    seconds = 0.0
    traces = {}
    for name, seed, buggy in (
        ("right", RIGHT_SEEDS[0], False),
        ("twin", TWIN_SEED, False),
        ("error", TWIN_SEED, True),
    ):
        script, traces[name] = folder / f"{name}.py", folder / name
        script.write_text(script_of(case, seed, buggy=buggy), encoding="utf-8")
        launcher: tuple[str | Path, ...] = ()
        if case.ranks > 1:
            launcher = "-s", script.with_suffix(".sh")
            launcher[1].write_text(_launcher(script, case.ranks), encoding="utf-8")
        seconds += cpu_seconds(
            *(tools / "traincheck-collect", "-p", script, "--models-to-track", "model"),
            *(*launcher, "--output-dir", traces[name]),
            folder=folder,
            may_fail=buggy and case.aborts,
        )
    learned = folder / "invariants.json"
    seconds += cpu_seconds(
        tools / "traincheck-infer", "-f", traces["right"], "-o", learned, folder=folder
    )
    found: dict[str, Any] = {"id": case.id, "learned": len(learned.read_text("utf-8").splitlines())}
    said: dict[str, dict[str, int | None]] = {}
    for name in ("twin", "error"):
        out = folder / f"checked-{name}"
        seconds += cpu_seconds(
            *(tools / "traincheck-check", "-f", traces[name], "-i", learned, "-o", out),
            "--no-html-report",
            folder=folder,
        )
        (summary,) = out.rglob("violations_summary.json")
        told = json.loads(summary.read_text("utf-8"))
        found[name] = told["distinct_invariants_violated"]
        said[name] = {
            f"{each['relation_type']} {each['display_name']}": each["first_step"]
            for each in told["violations"]
        }
    more = {name: step for name, step in said["error"].items() if name not in said["twin"]}
    steps = [step for step in more.values() if step is not None]
    found |= {"alone": len(more), "first_step": min(steps, default=None)}
    return found | {"names": sorted(more)[:8], "cpu_s": round(seconds, 1)}


def main() -> int:
    """Study what has no result yet, until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cpu-seconds", type=float, default=1500.0, help="begin no case after")
    arguments = parser.parse_args()
    python = os.environ.get("TRAINCHECK_PYTHON")
    if python is None:
        raise SystemExit("set TRAINCHECK_PYTHON to an interpreter with traincheck 0.2.0")
    results = RESULTS
    known = results.read_text("utf-8").splitlines() if results.exists() else []
    done = {json.loads(line)["id"] for line in known}
    spent = 0.0
    for name in [*ORDER, *(each for each in CASES if each not in ORDER)]:
        if name in done or spent > arguments.cpu_seconds:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = study(CASES[name], Path(python).absolute().parent, Path(folder))
            except RuntimeError as error:
                found = {"id": name, "failed": str(error)[-400:], "cpu_s": 0}
        spent += found["cpu_s"]
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found)[:300], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
