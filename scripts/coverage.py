"""Moves tiny models of the paper's table II, and of every family, to every platform here.

Each cell is a whole migration in child processes with a deadline: `tapml offload`, then `tapml run`
of the session. Cells are kept in docs/models.json, and the table between the marks in
docs/models.md is written from them after each one: run it again to continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.environment import ROOT  # noqa: E402
from tapml.durable.files import write_json, write_text  # noqa: E402
from tapml_targets.errors import InputError, TapmlError  # noqa: E402
from tapml_targets.platforms import platform_names  # noqa: E402
from tapml_targets.ranking import default_device, list_devices  # noqa: E402

PAGE: Final = ROOT / "docs" / "models.md"
ROWS: Final = ROOT / "docs" / "models.json"
BEGIN: Final = "<!-- coverage: written by scripts/coverage.py -->"
END: Final = "<!-- coverage ends -->"
DEADLINE_SECONDS: Final = 600.0
_TOKENS: Final = 40
# The smallest of a device that executes a kernel's source: each token takes seconds.
_SIMULATED_TOKENS: Final = 4
# What `tapml run` is given where it takes no token ids: shapes of the samples' arrays.
_ARRAYS: Final = {"vit": (4, 3, 24, 24), "digits_cnn": (8, 1, 8, 8), "whisper": (8, 40)}
# Models that ship with tapml need no folder.
_SHIPPED: Final = {"digits_cnn": "digits-cnn"}
EXAMPLES: Final = """\
examples:
  python scripts/coverage.py                              every row on every device of this machine
  python scripts/coverage.py --platforms opencl --jobs 2
  python scripts/coverage.py --families llama,rwkv5       rows of these families alone
  python scripts/coverage.py --platforms metal,cuda,rocm  executed from source, on request
  python scripts/coverage.py --again --families bert      measure again what is there
  python scripts/coverage.py --show                       only write the table

exit codes: 0 every cell asked for is measured, red ones too; 2 input; 130 interrupted, and what was
measured is kept.
"""


@dataclass(frozen=True)
class Row:
    """A model name, the family whose sample stands for it, and what it changes in the sample.

    Without a family here, `architecture` is what the published configuration names: its folder is
    made of the Llama sample under that name, and shows how it is refused.
    """

    name: str
    family: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = ""

    @property
    def key(self) -> str:
        """Equal for rows that are the same tiny model, which is measured once."""
        changes = json.dumps(dict(self.changes), sort_keys=True) if self.changes else ""
        return f"{self.architecture or self.family}{changes}"


_ALL_HEADS: Final = {"num_key_value_heads": 6}
# The order of the paper's table II. Attention is as published: all heads, groups, one.
PAPER: Final = (
    Row("Llama-7B", "llama", _ALL_HEADS),
    Row("StarCoder-1B", "gpt_bigcode"),
    Row("RedPajama-3B", "gpt_neox", {"rotary_pct": 1.0}),
    Row("InternLM-7B", "internlm", architecture="InternLMForCausalLM"),
    Row("WizardMath-7B", "llama", _ALL_HEADS),
    Row("Baichuan2-7B", "baichuan", architecture="BaichuanForCausalLM"),
    Row("TinyLlama-1.1B", "llama"),
    Row("Mistral-7B", "mistral"),
    Row("StableLM-3B", "stablelm", _ALL_HEADS),
    Row("RWKV5-3B", "rwkv5"),
    Row("Qwen-1.8B", "qwen", architecture="QWenLMHeadModel"),
    Row("Phi-2", "phi", _ALL_HEADS),
    Row("Qwen1.5-4B", "qwen2", {**_ALL_HEADS, "use_sliding_window": False}),
    Row("Orion-14B", "orion", architecture="OrionForCausalLM"),
    Row("Gemma-2B", "gemma", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    Row("RWKV6-3B", "rwkv6"),
)


def known_families() -> list[str]:
    """Families by their files: those of the tests' samples, and those of shipped models."""
    from tests.models.families import SAMPLES

    return sorted({*SAMPLES, *_SHIPPED})


def rows() -> list[Row]:
    """The paper's names, then every family; a name whose family has come takes its sample."""
    families = known_families()
    paper = [
        Row(row.name, row.family) if row.architecture and row.family in families else row
        for row in PAPER
    ]
    return paper + [Row(f"`{each}`", each) for each in families]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cells that are missing and write the table."""
    options = _parse(arguments)
    try:
        cells = _read(ROWS)
        platforms = _platforms(options.platforms)
        for platform in platforms if not options.show else ():
            default_device(platform)
        if options.jobs < 1:
            raise InputError(f"--jobs {options.jobs}: expected at least 1")
        chosen = _rows_of(options.families)
    except TapmlError as error:
        print(f"scripts/coverage.py: {error}", file=sys.stderr)
        return error.exit_code
    wanted = {
        (row.key, platform): row
        for platform in platforms
        for row in chosen
        if options.again or (row.key, platform) not in cells
    }
    if not options.show:
        # Also when it was started in the background, or is ended by a supervisor.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            _measure_all(wanted, cells, options)
        except KeyboardInterrupt:
            print(
                f"scripts/coverage.py: interrupted; {ROWS} has what was measured", file=sys.stderr
            )
            return 130
    _write(cells)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/coverage.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--families", metavar="NAMES", help="of these families, commas between")
    parser.add_argument(
        "--platforms", metavar="NAMES", help="default: all with a device that is not simulated"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at once (1)")
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_SECONDS, metavar="SECONDS",
        help=f"of each command of a cell (default: {DEADLINE_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure cells that are there")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    return parser.parse_args(arguments)


def _platforms(names: str | None) -> list[str]:
    known = [name for name in platform_names() if name != "cpu"]
    if names is None:
        return [
            name
            for name in known
            if any(each.device_type not in {"simulated", "checker"} for each in list_devices(name))
        ]
    return _chosen(names, known, "platform")


def _rows_of(names: str | None) -> list[Row]:
    known = rows()
    if names is None:
        return known
    families = _chosen(names, sorted({row.family for row in known}), "family")
    return [row for row in known if row.family in families]


def _chosen(names: str, known: Sequence[str], what: str) -> list[str]:
    chosen = [each.strip() for each in names.split(",") if each.strip()]
    for each in chosen:
        if each not in known:
            raise InputError(f"no {what} {each!r}: give some of {', '.join(known)}")
    return chosen


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Cells by row key and platform."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        return {(each["row"], each["platform"]): each for each in found["cells"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a file of this script ({error}): delete it") from error


def _measure_all(
    wanted: Mapping[tuple[str, str], Row],
    cells: dict[tuple[str, str], dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Measure cell by cell, `options.jobs` at once, keeping each as soon as it is there."""
    children = _Children(options.deadline)
    waiting = iter(wanted.items())
    running: dict[Future[dict[str, Any]], tuple[str, str]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tapml-coverage-") as temporary,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        try:
            while True:
                for key, row in itertools.islice(waiting, options.jobs - len(running)):
                    folder = Path(temporary) / f"{len(cells)}-{len(running)}-{time.monotonic_ns()}"
                    # Here and not in a thread: the sample's seed is the process's.
                    model = _make(row, folder)
                    running[pool.submit(_measure, row, model, folder, key[1], children)] = key
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    key = running.pop(done)
                    cells[key] = done.result()
                    print(f"{key[0]} on {key[1]}: {_text(cells[key])}", flush=True)
                    _write(cells)
        finally:
            children.stop()


class _Children:
    """Commands that run, each in a process group of its own that ends with it."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def tapml(self, *arguments: str) -> tuple[int | None, str, str]:
        """Run a tapml command: exit code (None: past the deadline), output and messages."""
        command = [sys.executable, "-P", "-c", "from tapml.cli.start import main; exit(main())"]
        with self._lock:
            if self._stopped:
                return None, "", "interrupted"
            child = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(child)
        try:
            output, errors = child.communicate(timeout=self.deadline)
            return child.returncode, output, errors
        except subprocess.TimeoutExpired:
            _kill(child)
            output, errors = child.communicate()
            return None, output, errors
        finally:
            with self._lock:
                self._running.discard(child)

    def stop(self) -> None:
        """End all that runs and start nothing more."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _make(row: Row, folder: Path) -> str:
    """Write the row's tiny model; the argument of `--model`."""
    from tests.models.families import make_family

    folder.mkdir()
    if row.family in _SHIPPED:
        return _SHIPPED[row.family]
    model = folder / "model"
    if not row.architecture:
        return str(make_family(model, row.family, **row.changes))
    make_family(model, "llama")
    path = model / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config |= {"architectures": [row.architecture], "model_type": row.family}
    path.write_text(json.dumps(config), "utf-8")
    return str(model)


def _measure(
    row: Row, model: str, folder: Path, platform: str, children: _Children
) -> dict[str, Any]:
    """One cell: the migration, then the speed of the moved model."""
    description = default_device(platform)
    simulated = description.device_type == "simulated"
    session = folder / "session"
    started = time.monotonic()
    code, _, errors = children.tapml(
        "offload", "--model", model, "--target", platform, "--session", str(session),
        "--keep-going", "--quiet", "--workers", "1", "--new-tokens", "2",
    )  # fmt: skip
    cell: dict[str, Any] = {
        "row": row.key,
        "platform": platform,
        "device": description.name,
        "driver": description.vendor_platform,
        "seconds": round(time.monotonic() - started, 1),
        # Other work on this machine: times are those of a machine as busy as this.
        "load": round(os.getloadavg()[0], 1),
    }
    report = _report(session)
    if report is not None:
        cell["operators"] = report["summary"]["operators"]
        cell["moved"] = report["summary"]["moved"]
        cell["import_to_last"] = round(_import_to_last(report), 1)
        failed = [each for each in report["operators"] if each["state"] == "failed"]
        cell["stops"] = [
            {"operator": each["name"], "cause": each["cause"], "reason": each["reason"]}
            for each in failed
        ]
    if code is None:
        return cell | {"error": f"not done after {children.deadline:.0f} s"}
    if code:
        said = [line for line in errors.splitlines() if line.startswith("tapml")]
        text = (said or errors.splitlines() or [f"exit code {code}"])[-1]
        return cell | {"error": text.replace(f"{folder}/", "")}
    tokens = str(_SIMULATED_TOKENS if simulated else _TOKENS)
    given = ["--tokens", "3 4 5 6 7", "--max-new-tokens", tokens]
    if row.family in _ARRAYS:
        given = ["--input", _array(folder / "x.npy", _ARRAYS[row.family])]
    code, output, errors = children.tapml("run", str(session), *given, "--json")
    if code != 0:
        return cell | {"error": (errors.splitlines() or ["tapml run ended"])[-1]}
    return cell | _speed(json.loads(output))


def _array(path: Path, shape: tuple[int, ...]) -> str:
    import numpy as np

    np.save(path, np.random.default_rng(3).standard_normal(shape).astype(np.float32))
    return str(path)


def _report(session: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((session / "report.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _import_to_last(report: Mapping[str, Any]) -> float:
    """Seconds from the import to the last operator; what ran beside other steps counts once."""
    return sum(
        float(each["seconds"])
        for each in report["phases"]
        if each["name"] not in {"open device", "load model", "compile kernels"}
    )


def _speed(result: Mapping[str, Any]) -> dict[str, Any]:
    if "tokens_per_second" in result:
        return {"tokens_per_second": round(result["tokens_per_second"], 1)}
    return {"run_milliseconds": round(1e3 * result["seconds"], 1)}


def _text(cell: Mapping[str, Any] | None) -> str:
    """What the table says of a cell."""
    if cell is None:
        return ""
    took = f", {cell['import_to_last']:.0f} s" if "import_to_last" in cell else ""
    if cell.get("stops"):
        first = cell["stops"][0]
        more = f" and {len(cell['stops']) - 1} more" if len(cell["stops"]) > 1 else ""
        return f"**stops at `{first['operator']}`**{more}{took}"
    if "error" in cell:
        return "**refused**" if "operators" not in cell else f"**ends**{took}"
    if "tokens_per_second" in cell:
        return f"{cell['tokens_per_second']:.0f}{took}"
    return f"{cell['run_milliseconds']:.1f} ms{took}"


def _lines(cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    platforms = [name for name in platform_names() if any(key[1] == name for key in cells)]
    named = {(each["platform"], each["device"], each["driver"]) for each in cells.values()}
    for platform, device, driver in sorted(named):
        yield f"- {platform}: {device}, {driver}"
    loads = [each["load"] for each in cells.values()]
    if loads:
        yield f"- load of the machine while measuring: {min(loads)} to {max(loads)}"
    yield ""
    yield f"| model | family | {' | '.join(platforms)} |"
    yield "|---" * (len(platforms) + 2) + "|"
    missing = []
    for row in rows():
        if not any((row.key, platform) in cells for platform in platforms):
            missing.append(row.name)
            continue
        found = [_text(cells.get((row.key, platform))) for platform in platforms]
        name = row.name if row.name != f"`{row.family}`" else "ours"
        yield f"| {name} | `{row.family}` | {' | '.join(found)} |"
    yield ""
    if missing:
        yield f"Not run yet: {', '.join(missing)}."
        yield ""
    for (key, platform), cell in sorted(cells.items()):
        for stop in cell.get("stops", []):
            reason = _short(
                f"{stop['cause']}: {stop['reason']}" if stop["cause"] else stop["reason"]
            )
            yield f"- `{key}` on {platform}, `{stop['operator']}`: {reason}"
        if "error" in cell and not cell.get("stops"):
            yield f"- `{key}` on {platform}: {_short(cell['error'])}"


def _short(text: str, most: int = 240) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _write(cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Keep the cells, and put the table between its marks."""
    data = {"cells": [cells[key] for key in sorted(cells)]}
    write_json(ROWS, data)
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    text = "\n".join([BEGIN, "", *_lines(cells), END])
    write_text(PAGE, before + text + after)


if __name__ == "__main__":
    sys.exit(main())
