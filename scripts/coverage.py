"""Moves tiny models of the paper's table II, and of every family, to every platform here.

Each cell is a whole migration in child processes with a deadline: `tapml offload`, then `tapml
package`. Packages are kept, so that `--rates` can measure tokens per second on another day, when
nothing else runs. Cells are kept in docs/models.json, and the table between the marks in
docs/models.md is written from them after each one: run it again to continue. Another machine's
cells and table have files of their own, `--cells` and `--page`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.environment import ROOT
from scripts.marked_section import write_between
from tapml.durable.files import write_json, write_text
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import default_device, list_devices

PAGE: Final = ROOT / "docs" / "models.md"
ROWS: Final = ROOT / "docs" / "models.json"
BEGIN: Final = "<!-- coverage: written by scripts/coverage.py -->"
END: Final = "<!-- coverage ends -->"
PACKAGES: Final = ROOT / "build" / "coverage"
DEADLINE_SECONDS: Final = 3600.0
_TOKENS: Final = 40
# Of a column's name, after its platform's.
_HALF: Final = " float16"
# The smallest of a device that executes a kernel's source: each token takes seconds.
_SIMULATED_TOKENS: Final = 4
# What `tapml run` is given where it takes no token ids: shapes of the samples' arrays.
_ARRAYS: Final = {"vit": (4, 3, 24, 24), "digits_cnn": (8, 1, 8, 8), "whisper": (8, 40)}
# Models that ship with tapml need no folder.
_SHIPPED: Final = {"digits_cnn": "digits-cnn"}
EXAMPLES: Final = """\
examples:
  python scripts/coverage.py                              every row on every device of this machine
  nice -n 19 python scripts/coverage.py --platforms opencl,webgpu,vulkan
  python scripts/coverage.py --families llama,rwkv5       rows of these families alone
  python scripts/coverage.py --platforms metal,cuda,rocm  executed from source, on request
  python scripts/coverage.py --again --families bert      measure again what is there
  python scripts/coverage.py --platforms vulkan --dtype float16
  python scripts/coverage.py --cells gpu.json --page gpu.md   cells of another machine
  python scripts/coverage.py --rates                      tokens per second of the kept packages
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
        known = {row.key for row in rows()}
        # A name whose family has come is another row: its refusal is no longer true.
        cells = {key: cell for key, cell in _read(options.cells).items() if key[0] in known}
        platforms = _platforms(options.platforms)
        for platform in platforms if not options.show else ():
            default_device(platform)
        chosen = _rows_of(options.families)
    except TapmlError as error:
        print(f"scripts/coverage.py: {error}", file=sys.stderr)
        return error.exit_code
    columns = [f"{name}{_HALF}" if options.dtype else name for name in platforms]
    asked = {(row.key, column): row for row in chosen for column in columns}
    if not options.show:
        # Also when it was started in the background, or is ended by a supervisor.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            (_measure_rates if options.rates else _measure_outcomes)(asked, cells, options)
        except KeyboardInterrupt:
            print(
                f"scripts/coverage.py: interrupted; {options.cells} has what was measured",
                file=sys.stderr,
            )
            return 130
    _write(cells, options)
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
    parser.add_argument(
        "--dtype", choices=("float16",), help="columns of their own, of models with this dtype"
    )
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_SECONDS, metavar="SECONDS",
        help=f"of each command of a cell (default: {DEADLINE_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--packages", type=Path, default=PACKAGES, metavar="FOLDER",
        help=f"where what has moved is kept (default: {PACKAGES.relative_to(ROOT)})",
    )  # fmt: skip
    parser.add_argument(
        "--cells", type=Path, default=ROWS, metavar="FILE",
        help=f"where cells are kept (default: {ROWS.relative_to(ROOT)})",
    )  # fmt: skip
    parser.add_argument(
        "--page", type=Path, default=PAGE, metavar="FILE",
        help=f"a page with the table's marks (default: {PAGE.relative_to(ROOT)})",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure cells that are there")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--rates", action="store_true", help="measure only how fast the kept packages run"
    )
    what.add_argument("--show", action="store_true", help="measure nothing")
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


_Cells: TypeAlias = dict[tuple[str, str], dict[str, Any]]


def _measure_outcomes(
    asked: Mapping[tuple[str, str], Row], cells: _Cells, options: argparse.Namespace
) -> None:
    """Move what has no cell yet, keeping each as soon as it is there."""
    options.packages.mkdir(parents=True, exist_ok=True)
    for key, row in asked.items():
        if key in cells and not options.again:
            continue
        with tempfile.TemporaryDirectory(prefix="tapml-coverage-") as temporary:
            model = _make(row, Path(temporary))
            package = _package(options.packages, key)
            cells[key] = _move(row, model, Path(temporary), key[1], package, options.deadline)
        print(f"{key[0]} on {key[1]}: {_text(cells[key])}", flush=True)
        _write(cells, options)


def _measure_rates(
    asked: Mapping[tuple[str, str], Row], cells: _Cells, options: argparse.Namespace
) -> None:
    """Run the kept packages of what has moved and has no rate yet."""
    for key, row in asked.items():
        cell = cells.get(key)
        if cell is None or "error" in cell or ("rate" in cell and not options.again):
            continue
        package = _package(options.packages, key)
        if not package.exists():
            print(f"{key[0]} on {key[1]}: no package {package}; move it with --again", flush=True)
            continue
        found = _rate(row, package, cell["device_type"] == "simulated", options.deadline)
        cell.update(found)
        print(f"{key[0]} on {key[1]}: {_text(cell)}", flush=True)
        _write(cells, options)


def _package(folder: Path, key: tuple[str, str]) -> Path:
    digest = hashlib.sha256(key[0].encode()).hexdigest()[:8]
    family = key[0].partition("{")[0]
    return folder / f"{family}-{digest}-{key[1].replace(' ', '-')}"


@dataclass(frozen=True)
class Ended:
    """A command that ended: exit code (None: past the deadline), output, messages, CPU seconds."""

    code: int | None
    output: str
    errors: str
    cpu_seconds: float

    @property
    def said(self) -> str:
        """The last line that tapml itself wrote, else the last line."""
        lines = self.errors.splitlines()
        own = [line for line in lines if line.startswith("tapml")]
        return (own or lines or [f"exit code {self.code}"])[-1]


def tapml_command(deadline: float, *arguments: str) -> Ended:
    """Run a tapml command in a process group of its own, which ends with it."""
    command = [sys.executable, "-P", "-c", "from tapml.cli.start import main; exit(main())"]
    before = _children_seconds()
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        code: int | None
        try:
            output, errors = child.communicate(timeout=deadline)
            code = child.returncode
        except subprocess.TimeoutExpired:
            _kill(child)
            output, errors = child.communicate()
            code = None
        except BaseException:
            _kill(child)
            raise
    return Ended(code, output, errors, _children_seconds() - before)


def _children_seconds() -> float:
    """CPU seconds of all processes that were waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _make(row: Row, folder: Path) -> str:
    """Write the row's tiny model; the argument of `--model`."""
    from tests.models.families import make_family

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


def _move(
    row: Row, model: str, folder: Path, column: str, package: Path, deadline: float
) -> dict[str, Any]:
    """One cell: the migration, and the package of what has moved."""
    platform, _, dtype = column.partition(" ")
    description = default_device(platform)
    session = folder / "session"
    ended = tapml_command(
        deadline, "offload", "--model", model, "--target", platform, "--session", str(session),
        "--keep-going", "--quiet", "--workers", "1", "--new-tokens", "2", "--strategy", "bisect",
        *(("--dtype", dtype) if dtype else ()),
    )  # fmt: skip
    cell: dict[str, Any] = {
        "row": row.key,
        "platform": column,
        "device": description.name,
        "device_type": description.device_type,
        "driver": description.vendor_platform,
        "cpu_seconds": round(ended.cpu_seconds, 1),
    }
    report = _report(session)
    if report is not None:
        cell["operators"] = report["summary"]["operators"]
        cell["moved"] = report["summary"]["moved"]
        cell["stops"] = [
            {"operator": each["name"], "cause": each["cause"], "reason": each["reason"]}
            for each in report["operators"]
            if each["state"] == "failed"
        ]
    if ended.code is None:
        return cell | {"error": f"not done after {deadline:.0f} s"}
    if ended.code:
        return cell | {"error": ended.said.replace(f"{folder}/", "")}
    packed = tapml_command(deadline, "package", str(session), "--out", str(package), "--force")
    return cell | ({} if packed.code == 0 else {"error": packed.said.replace(f"{folder}/", "")})


def _rate(row: Row, package: Path, simulated: bool, deadline: float) -> dict[str, Any]:
    """How fast a package runs: tokens per second, or a run's milliseconds where it writes none."""
    load = round(os.getloadavg()[0], 1)
    tokens = str(_SIMULATED_TOKENS if simulated else _TOKENS)
    given = ["--tokens", "3 4 5 6 7", "--max-new-tokens", tokens]
    with tempfile.TemporaryDirectory(prefix="tapml-coverage-") as folder:
        if row.family in _ARRAYS:
            given = ["--input", _array(Path(folder) / "x.npy", _ARRAYS[row.family])]
        ended = tapml_command(deadline, "run", str(package), *given, "--json")
    if ended.code != 0:
        return {"error": ended.said}
    result = json.loads(ended.output)
    if "tokens_per_second" in result:
        return {"rate": f"{result['tokens_per_second']:.0f} tokens/s", "load": load}
    return {"rate": f"{1e3 * result['seconds']:.1f} ms", "load": load}


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


def _text(cell: Mapping[str, Any] | None) -> str:
    """What the table says of a cell."""
    if cell is None:
        return ""
    took = f", {cell['cpu_seconds']:.0f} s"
    if cell.get("stops"):
        first = cell["stops"][0]
        more = f" and {len(cell['stops']) - 1} more" if len(cell["stops"]) > 1 else ""
        return f"**stops at `{first['operator']}`**{more}{took}"
    if "error" in cell:
        return "**refused**" if "operators" not in cell else f"**ends**{took}"
    rate = f", {cell['rate']}" if "rate" in cell else ""
    return f"moved {cell['moved']}{took}{rate}"


def _lines(cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    columns = [f"{name}{half}" for name in platform_names() for half in ("", _HALF)]
    platforms = [name for name in columns if any(key[1] == name for key in cells)]
    named = {(each["platform"], each["device"], each["driver"]) for each in cells.values()}
    for platform, device, driver in sorted(named):
        yield f"- {platform}: {device}, {driver}"
    loads = [each["load"] for each in cells.values() if "load" in each]
    if loads:
        yield f"- load of the machine while rates were measured: {min(loads)} to {max(loads)}"
    else:
        yield "- no rate is measured yet: `--rates` does it, on a machine where nothing else runs"
    yield ""
    yield f"| model | family | {' | '.join(platforms)} |"
    yield "|---" * (len(platforms) + 2) + "|"
    missing: dict[str, list[str]] = {}
    for row in rows():
        name = row.name if row.name != f"`{row.family}`" else "ours"
        for platform in platforms:
            if (row.key, platform) not in cells:
                missing.setdefault(platform, []).append(row.name)
        if any((row.key, platform) in cells for platform in platforms):
            found = [_text(cells.get((row.key, platform))) for platform in platforms]
            yield f"| {name} | `{row.family}` | {' | '.join(found)} |"
    yield ""
    for platform, names in missing.items():
        yield f"- Not run on {platform}: {', '.join(names)}."
    unseen = [name for name in platform_names() if name != "cpu" and name not in platforms]
    if unseen:
        yield f"- Not run at all: {', '.join(unseen)}."
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


def _write(cells: Mapping[tuple[str, str], Mapping[str, Any]], options: argparse.Namespace) -> None:
    """Keep the cells, and put the table between its marks."""
    data = {"cells": [cells[key] for key in sorted(cells)]}
    write_json(options.cells, data)
    if not options.page.exists():
        write_text(options.page, f"{BEGIN}\n{END}\n")
    write_between(options.page, BEGIN, END, "\n".join(_lines(cells)))


if __name__ == "__main__":
    sys.exit(main())
