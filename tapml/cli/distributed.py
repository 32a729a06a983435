"""``tapml distributed``: whether training on N devices equals training on one."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.distributed_fuzz import add_fuzz
from tapml.cli.model_arguments import number, positive
from tapml.cli.setting_arguments import add_settings, assigned, listed

if TYPE_CHECKING:
    from rich.table import Table

    from tapml.distributed.results import Check, RunResult, Setting
    from tapml.runs.events import Event

_EXIT_CODES: Final = """\
exit codes:
  0 every setting equals one device
  1 a finding: inconsistent, crash, hang, slow, not deterministic
  2 usage, input or environment; a setting that could not be run or judged   130 interrupted
"""
_EPILOG: Final = """\
examples:
  tapml distributed check train.py                       DDP and FSDP2 on 1, 2 and 4 ranks
  tapml distributed check train.py --world 1,2 --engine ddp --json
  tapml distributed check train.py --engine torchrec --set sharding=RW,CW
  tapml distributed fuzz found --engine fsdp2            generated models in place of a job
  tapml distributed compare one many                     recordings of torchrun's ranks
  tapml distributed engines                              what can be checked here
  tapml distributed settings --published                 the paper's settings, one by one

A job is a Python file that defines model(), batch() and step(model, batch, optimizer). It may
define optimizer(model), part(batch, rank, world), predict(model, batch), its own wrapping
distribute(model, rank, world), WORLDS and STEPS (docs/distributed.md).

"""
_CHECK_EPILOG: Final = """\
examples:
  tapml distributed check train.py
  tapml distributed check train.py --world 1,2,4 --engine ddp,fsdp2 --report report.html
  tapml distributed check train.py --engine own --steps 3 --explain
  tapml distributed check train.py --folder checked       killed, it goes on where it was
  tapml distributed check train.py --json > check.json
  tapml distributed check train.py --world 8 --workers tls://big:8786

Ranks are processes on this machine, or on the workers of a Dask scheduler, that talk over gloo; no
GPU is needed.

"""
_SETTINGS_EPILOG: Final = """\
examples:
  tapml distributed settings                             all engines
  tapml distributed settings --engine torchrec --set sharding=RW,GRID --set device=cpu
  tapml distributed settings --published                 the paper's, one by one
  tapml distributed settings --engine torchrec --set device=cpu --audit train.py

exit codes:
  0 listed; with --audit, no rule is out of date
  1 a rule is out of date   2 usage, input or environment   130 interrupted
"""
_COMPARE_EPILOG: Final = """\
In the script, after the model is wrapped and the optimizer is made:

  import tapml.distributed
  tapml.distributed.record(os.environ["RECORD"], model, optimizer)

examples:
  RECORD=one python train.py
  RECORD=many torchrun --nproc-per-node 4 train.py
  tapml distributed compare one many
  tapml distributed compare one two four --explain --report report.html

The first recording is of one process with the whole batch. All start with the same weights: load a
checkpoint, or give record(..., start="one").

"""
_JUDGED: Final = {True: "in float32 by measured sensitivities", False: "by fixed limits"}
_MARKS: Final = {"equal": "green", "not run": "yellow", "refused by the library": "yellow"}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "distributed",
        help="whether training on N devices equals training on one",
        description="Check distributed training against one device, on this machine.",
        epilog=_EPILOG + _EXIT_CODES,
    )
    commands = parser.add_subparsers(dest="distributed_command", metavar="COMMAND", required=True)
    check: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="run a job on one device and on ranks, and compare",
        description="Train a job on one device and under every setting, compare everything a step\n"
        "computes, and name the first wrong tensor, its ranks and the mistake.",
        epilog=_CHECK_EPILOG + _EXIT_CODES,
    )
    check.add_argument("job", type=Path, metavar="JOB.py", help="the job")
    add_settings(
        check,
        engines="own if the job defines distribute, else ddp,fsdp2",
        worlds="the job's WORLDS, else 1,2,4",
    )
    check.add_argument(
        "--steps", type=positive, metavar="N", help="training steps (default: STEPS, else 1)"
    )
    check.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="keep the results there; the same command then runs what is missing",
    )
    check.add_argument(
        "--pairs", action="store_true", help="compare every two settings with each other, too"
    )
    check.add_argument(
        "--flip",
        action="store_true",
        help="run what differs in one parameter from a finding, to see which trigger it",
    )
    check.add_argument(
        "--workers",
        default="",
        metavar="ADDRESS",
        help="place the ranks of each run on the workers of a Dask scheduler: "
        "tcp://127.0.0.1:8786, or tls://HOST:8786 (default: all on this machine)",
    )
    check.add_argument("--report", type=Path, metavar="FILE.html", help="write a page")
    check.add_argument("--explain", action="store_true", help="list every wrong tensor")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=run_check)
    add_fuzz(commands)
    _add_compare(commands)
    engines: argparse.ArgumentParser = commands.add_parser(
        "engines",
        help="list the engines",
        description="List the ways to distribute a model that can be checked here.",
        epilog="examples:\n  tapml distributed engines\n  tapml distributed engines --json\n",
    )
    engines.add_argument("--json", action="store_true", help="print JSON")
    engines.set_defaults(run=run_engines)
    settings: argparse.ArgumentParser = commands.add_parser(
        "settings",
        help="list every combination of an engine's parameters",
        description="List every combination of an engine's parameters: what runs here, what this\n"
        "machine lacks, and which rule prunes the rest. With --audit, run what rules prune: a\n"
        "rule is out of date if such a setting is equal to one device.",
        epilog=_SETTINGS_EPILOG,
    )
    settings.add_argument(
        "--engine",
        type=listed("a list of engines such as ddp,torchrec", str),
        metavar="NAME,...",
        help="engines (default: all)",
    )
    settings.add_argument(
        "--set",
        action="append",
        type=assigned,
        default=[],
        metavar="NAME=VALUE,...",
        help="values of an engine's own parameter (default: all)",
    )
    settings.add_argument("--published", action="store_true", help="the settings of the paper")
    settings.add_argument("--audit", type=Path, metavar="JOB.py", help="run what rules prune")
    settings.add_argument("--json", action="store_true", help="print JSON")
    settings.set_defaults(run=run_settings)


def _add_compare(commands: Any) -> None:
    compare: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="compare recordings of your own launcher's ranks with that of one process",
        description="Compare what tapml.distributed.record wrote in the ranks of torchrun or any\n"
        "other launcher with the recording of one process, and name the first wrong tensor.",
        epilog=_COMPARE_EPILOG + _EXIT_CODES,
    )
    compare.add_argument("one", type=Path, metavar="ONE", help="the recording of one process")
    compare.add_argument(
        "many", type=Path, nargs="+", metavar="MANY", help="recordings of more ranks"
    )
    compare.add_argument(
        "--limit",
        type=number("a number above 0 and below 1", float, 1e-300, 0.999999),
        metavar="X",
        help="allowed error over a tensor's largest value (default: 1e-9 in float64, 1e-3 in "
        "float32, 5e-2 in shorter formats)",
    )
    compare.add_argument("--report", type=Path, metavar="FILE.html", help="write a page")
    compare.add_argument("--explain", action="store_true", help="list every wrong tensor")
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare recordings; 1 on a finding."""
    from tapml.distributed.recorded_runs import compare

    return _show(compare(arguments.one, *arguments.many, limit=arguments.limit), arguments)


def run_check(arguments: argparse.Namespace) -> int:
    """Check a job; 1 on a finding, 2 if a setting could not be judged."""
    from tapml.distributed.checking import check

    with _progress() as watcher:
        found = check(
            arguments.job,
            worlds=arguments.world,
            engines=arguments.engine,
            options=dict(arguments.set),
            pairs=arguments.pairs,
            flip=arguments.flip,
            steps=arguments.steps,
            deadline_seconds=arguments.deadline,
            folder=arguments.folder,
            watcher=watcher,
            workers=arguments.workers,
        )
    return _show(found, arguments)


def _show(found: Check, arguments: argparse.Namespace) -> int:
    """Print a check, write its page, and return the exit code."""
    if arguments.report is not None:
        from tapml.distributed.page import write_page

        write_page(found, arguments.report)
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        _print(found, explain=arguments.explain)
        if arguments.report is not None:
            print(f"report: {arguments.report}")
    return found.exit_code


def run_engines(arguments: argparse.Namespace) -> int:
    """List the engines."""
    from tapml.distributed.engine import engine_packages, find_engine

    titles = {name: find_engine(name).settings.TITLE for name in engine_packages()}
    if arguments.json:
        print(json.dumps([{"name": name, "title": title} for name, title in titles.items()]))
    else:
        for name, title in titles.items():
            print(f"{name:16} {title}")
    return 0


def run_settings(arguments: argparse.Namespace) -> int:
    """List settings, or audit the rules; 1 if one is out of date."""
    from tapml.cli.distributed_settings import audit_settings, list_published, list_settings

    if arguments.published:
        return list_published(arguments.engine, as_json=arguments.json)
    asked = {name: tuple(values) for name, values in arguments.set}
    if arguments.audit is None:
        return list_settings(arguments.engine, asked, as_json=arguments.json)
    with _progress() as watcher:
        return audit_settings(
            arguments.engine, asked, arguments.audit, watcher, as_json=arguments.json
        )


@contextmanager
def _progress() -> Iterator[Callable[[Event], None]]:
    """Print each phase and setting to stderr as it ends; in a terminal also what runs now."""
    from rich.console import Console

    from tapml.distributed.checking import SettingChecked
    from tapml.runs.events import PhaseEnded, PhaseProgressed, PhaseStarted

    console = Console(stderr=True, highlight=False, emoji=False)
    status = console.status("")

    def watch(event: Event) -> None:
        if isinstance(event, PhaseStarted):
            status.update(event.name)
        elif isinstance(event, PhaseProgressed):
            status.update(f"{event.detail} ({event.done + 1} of {event.total})")
        elif isinstance(event, SettingChecked):
            result = event.result
            tail = f" ({result.seconds:.2f} s a run)" if result.seconds else ""
            console.print(
                f"[{event.done}/{event.total}] {result.setting.name}: {result.outcome}{tail}",
                markup=False,
            )
        elif isinstance(event, PhaseEnded):
            text = f"{event.name}: {event.detail or 'done'} ({event.seconds:.1f} s)"
            console.print(text, markup=False)

    if sys.stderr.isatty():
        with status:
            yield watch
    else:
        yield watch


def _print(found: Check, *, explain: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, emoji=False)
    console.print(_table(found))
    for each in found.results:
        if each.outcome != "equal":
            console.print()
            for line in _paragraph(each):
                console.print(Text(line), soft_wrap=True)
            if explain and each.deviations:
                console.print(_deviations(each))
    for line in _pairs(found):
        console.print(Text(line), soft_wrap=True)
    console.print()
    for line in _conclusion(found):
        console.print(Text(line), soft_wrap=True)


def _table(found: Check) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "outcome", "first wrong tensor", "ranks", "ratio", "paper's oracle"):
        table.add_column(title, overflow="fold")
    for each in found.results:
        table.add_row(
            Text(_short_name(each.setting, found)),
            Text(str(each.outcome), style=_MARKS.get(str(each.outcome), "red")),
            Text(each.first_wrong or "-"),
            Text(", ".join(map(str, each.ranks)) or "-"),
            Text("-" if each.ratio is None else f"{each.ratio:.4g}"),
            Text(each.published or "-"),
        )
    return table


def _short_name(setting: Setting, found: Check) -> str:
    """The name without the values that all settings share."""
    shown = {
        name: value
        for name, value in setting.options.items()
        if any(each.setting.options.get(name, value) != value for each in found.results)
    }
    return setting.named(shown)


def _paragraph(each: RunResult) -> list[str]:
    lines = [f"{each.setting.name}: {each.outcome}. {_capital(each.reason)}."]
    if each.mistake:
        lines.append(f"  mistake: {each.mistake}")
    elif each.outcome == "inconsistent":
        lines.append("  mistake: no standard one gives what the ranks have")
    if each.remedy:
        lines.append(f"  remedy: {each.remedy}")
    if each.triggers:
        # Without one of these two kinds of layers alone it would differ still.
        named = ", ".join(each.triggers).replace("BatchNorm, dropout", "BatchNorm with dropout")
        lines.append(f"  triggers: {named} (changed alone, it is equal)")
    if each.place is not None:
        place = each.place
        lines.append(
            f"  worst: rank {place.rank} at {list(place.index)}, {place.actual:.9g} for "
            f"{place.expected:.9g}; {place.wrong_elements} of {place.elements} elements are wrong"
        )
    return lines + [f"  {line}" for line in each.details]


def _deviations(each: RunResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("  step", "phase", "tensor", "ranks", "error", "limit", "ratio", ""):
        table.add_column(title, overflow="fold")
    for found in each.deviations:
        table.add_row(
            Text(f"  {found.step}"),
            Text(found.phase),
            Text(found.tensor),
            Text(", ".join(map(str, found.ranks))),
            Text("missing" if math.isinf(found.error) else f"{found.error:.3g}"),
            Text(f"{found.limit:.1g}"),
            Text("-" if found.ratio is None else f"{found.ratio:.4g}"),
            Text(found.note),
        )
    return table


def _pairs(found: Check) -> Iterator[str]:
    """A line for every two settings that differ, and one for all that agree."""
    if not found.pairs:
        return
    from tapml.distributed.results import tensor_words

    equal = sum(each.equal for each in found.pairs)
    yield f"\n{len(found.pairs)} pairs of settings: {equal} agree"
    for each in found.pairs:
        if not each.equal:
            ratio = "" if each.ratio is None else f", {each.ratio:.4g} times"
            yield (
                f"  {each.first} and {each.second}: {tensor_words(each.phase, each.tensor)}, "
                f"off by {each.error:.2g}{ratio} (they differ in {', '.join(each.differs_in)})"
            )


def _conclusion(found: Check) -> list[str]:
    facts = found.facts
    counts: dict[str, int] = {}
    for each in found.results:
        counts[each.outcome] = counts.get(each.outcome, 0) + 1
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    several = "s" * (len(found.results) != 1)
    lines = [f"{len(found.results)} setting{several}: {said} ({found.seconds:.1f} s)"]
    if not facts.twin:
        lines.append(f"judged {_JUDGED[found.measured]}, because {facts.twin_reason}")
    if not facts.trains:
        lines.append("no parameter changes on one device: does step() call optimizer.step()?")
    skipped = sorted({text for each in found.results for text in each.not_compared})
    lines += [f"not compared: {text}" for text in skipped[:5]]
    if len(skipped) > 5:
        lines.append(f"not compared: {len(skipped) - 5} more (--json lists them)")
    return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
