"""``tapml compare``: one model on several backends, and the layer at which they part."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import number, seconds, writable_folder

if TYPE_CHECKING:
    from tapml.comparing.baseline import Baseline
    from tapml.comparing.result import Comparison
    from tapml.comparing.verdicts import Thresholds

_EPILOG: Final = """\
examples:
  tapml compare model.keras --backends keras-torch,keras-jax,keras-tensorflow --data data.npz
  tapml compare model.onnx --backends onnxruntime,onnxruntime:disabled,openvino --data data.npz
  tapml compare model.onnx --backends onnxruntime@1.20,onnxruntime --data data.npz
  tapml compare model.keras --backends keras-torch,keras-jax --data data.npz --json
  tapml compare own.keras --code layers.py --backends keras-torch,keras-jax --data data.npz
  tapml compare digits-cnn --backends torch-eager,torch-compile,tvm,cpu --data data.npz
  tapml compare pydoc-llama --backends torch-eager,torch-compile:aot-eager,cpu --data texts.txt
  tapml compare model.onnx --backends onnxruntime,openvino --data data.npz --write-baseline ok.json
  tapml compare model.onnx --backends onnxruntime,openvino --data data.npz --baseline ok.json
  tapml compare session                                 a finished migration: source and target
  tapml compare model.onnx --backends onnxruntime --data data.npz --outputs kept    (on one machine)
  tapml compare model.onnx --backends openvino --data data.npz --outputs kept       (on another)
  tapml compare --outputs kept                          what is there, without running anything
  tapml compare --fuzz found --backends onnxruntime,openvino --minutes 5
  tapml compare model.onnx --fuzz found --backends onnxruntime,openvino --data data.npz
  tapml compare --calibrate results/ --write-thresholds own.json
  tapml compare model.keras --backends keras-torch,keras-jax --data data.npz --thresholds own.json
  tapml compare --causes results/                       what they have in common, each cause once
  tapml compare --list                                  the backends, and what each needs

The data is an .npz file, or a folder of .npy files, with arrays named as the model's inputs, or x,
and labels in y; a .csv file with a row an instance, whose labels are a column y; or a folder of
images, in subfolders by class; for a language model a .txt file, a text a line, or a folder of .txt
files, of which the first 64 tokens count. Labels are classes (whole numbers) or targets (floats);
without them, the class that most backends put first stands in.
Every backend runs in a process of its own. For each pair that differs, the layer is named that
differs alone on equal inputs, and with three backends or more the one that a majority disagrees
with. NAME@VERSION is another version of the library: the first use installs it with pip into an
environment in your cache. --output FOLDER keeps the localization maps (report.html), result.json,
and in layers/ each pair's layer alone with a script. --fuzz FOLDER keeps each cause it finds once,
as its smallest model with a script.

exit codes: 0 all pairs agree, or show only what --baseline has; 1 a pair differs, or a backend
crashes or hangs; 2 usage or input
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="one model on several backends: do they agree, and where do they part?",
        description="Run one model on several backends, compare them, and find the layer at fault.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        help="a .keras, .onnx, .gguf or .pt2 file, or the folder of a torch module, a language "
        "model or a finished session",
    )
    parser.add_argument(
        "--backends", metavar="A,B,...", default="",
        help="at least two, or all that are installed and read the model; of a session, its source "
        "and its target are the default",
    )  # fmt: skip
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="an .npz, .npy or .csv file, a folder of images or .npy files, or a .txt file or "
        "folder of them",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="write report.html, result.json, and each pair's layer alone with a script there",
    )
    parser.add_argument(
        "--outputs", type=Path, metavar="FOLDER",
        help="keep the outputs there, by content; what it has is not run again, and what other "
        "machines or versions left there is compared; without a model, only that is compared",
    )  # fmt: skip
    parser.add_argument(
        "--code", type=Path, metavar="FILE",
        help="a Python file that defines classes of a .keras file that are not Keras's own; it is "
        "run in the backends' processes",
    )  # fmt: skip
    gate = parser.add_mutually_exclusive_group()
    gate.add_argument(
        "--baseline", type=Path, metavar="FILE",
        help="fail only for what this file does not have: a new fault, or one on more instances",
    )  # fmt: skip
    gate.add_argument(
        "--write-baseline", type=Path, metavar="FILE", help="accept what is found: write that file"
    )
    _add_thresholds(parser)
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="a backend that needs longer for a call hangs (default: %(default)g)",
    )
    fuzz = parser.add_argument_group("search (--fuzz)")
    fuzz.add_argument(
        "--fuzz", type=Path, metavar="FOLDER",
        help="search for models on which the backends part: edits of MODEL, or without one stacks "
        "of layers; the folder keeps every case, so that the search goes on",
    )  # fmt: skip
    fuzz.add_argument(
        "--cases", type=number("a number of cases", int, 1, 1_000_000), metavar="N",
        help="cases to try (default: 500)",
    )  # fmt: skip
    fuzz.add_argument(
        "--minutes", type=number("minutes", float, 0.01, 1e5), metavar="M",
        help="time to spend (default: 10)",
    )  # fmt: skip
    fuzz.add_argument(
        "--seed", type=number("a seed", int, 0, 2**32 - 1), metavar="S",
        help="the same seed draws the same cases (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--causes", type=Path, nargs="+", metavar="RESULT",
        help="count what several results have in common, each cause once: result.json files, or "
        "folders with them",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the backends and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _add_thresholds(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when an instance triggers")
    group.add_argument(
        "--thresholds", type=Path, metavar="FILE", help="what --write-thresholds wrote"
    )
    group.add_argument(
        "--class-distance",
        type=number("a number from 1 to 16", float, 1.0, 16.0),
        metavar="T_C",
        help="least D_CLASS of an instance that triggers (default: 8)",
    )
    group.add_argument(
        "--top-k",
        type=number("a whole number from 1 to 5", int, 1, 5),
        metavar="K",
        help="ranks that count for D_CLASS (default: 5)",
    )
    group.add_argument(
        "--mad-distance",
        type=number("a number from 0 to 1", float, 0.0, 1.0),
        metavar="T_M",
        help="least D_MAD of an instance that triggers (default: 0.2)",
    )
    group.add_argument(
        "--divergence",
        type=number("nats from 0 to 100", float, 0.0, 100.0),
        metavar="NATS",
        help="least Kullback-Leibler divergence of a language model's position that triggers "
        "(default: 0.001)",
    )
    group.add_argument(
        "--relative",
        type=number("a number from 0 to 1", float, 0.0, 1.0),
        metavar="SHARE",
        help="least deviation of an element that triggers, as a share of the output's scale "
        "(default: 0.001)",
    )
    group.add_argument(
        "--confirmed",
        type=number("a number from 0 to 1", float, 0.0, 1.0),
        metavar="SHARE",
        help="the same where a layer is found that differs alone (default: 0.0001)",
    )
    group.add_argument(
        "--share",
        type=number("a percentage from 0 to 100", float, 0.0, 100.0),
        metavar="PERCENT",
        help="instances that must trigger before a pair is inconsistent (default: any)",
    )
    group.add_argument(
        "--calibrate", type=Path, nargs="+", metavar="RESULT",
        help="choose thresholds by cross-validation over models that were compared: result.json "
        "files, or folders with them",
    )  # fmt: skip
    group.add_argument(
        "--write-thresholds", type=Path, metavar="FILE", help="keep what --calibrate chose"
    )


def _limits(arguments: argparse.Namespace) -> Thresholds:
    """The file's thresholds, or the defaults; what is given beside them counts."""
    from tapml.comparing.verdicts import Thresholds

    limits = Thresholds()
    if arguments.thresholds is not None:
        from tapml.comparing.calibration import read_thresholds

        limits = read_thresholds(arguments.thresholds)
    given = {
        "class_distance": arguments.class_distance,
        "top_k": arguments.top_k,
        "mad_distance": arguments.mad_distance,
        "relative": arguments.relative,
        "confirmed": arguments.confirmed,
        "divergence": arguments.divergence,
        "share": None if arguments.share is None else arguments.share / 100,
    }
    return replace(limits, **{name: each for name, each in given.items() if each is not None})


def run(arguments: argparse.Namespace) -> int:
    """Compare; 0 if all pairs agree."""
    if arguments.list:
        return _list(arguments.json)
    if arguments.calibrate is not None:
        return _calibrate(arguments)
    if arguments.causes is not None:
        return _print_causes(arguments)

    if arguments.fuzz is not None:
        return _fuzz(arguments)
    if arguments.outputs is not None and arguments.model is None:
        return _compare_stored(arguments)
    _check_given(arguments)
    from tapml.cli.progress import watch
    from tapml.comparing.layer_script import LAYERS
    from tapml.comparing.run import compare

    accepted = None
    if arguments.baseline is not None:
        from tapml.comparing.baseline import read_baseline

        accepted = read_baseline(arguments.baseline)
    names = _names(arguments)
    for folder in filter(None, (arguments.output, arguments.outputs)):
        writable_folder(folder)
    if arguments.write_baseline is not None:
        writable_folder(arguments.write_baseline.parent)
    with watch(quiet=arguments.quiet or arguments.json) as watcher:
        comparison = compare(
            arguments.model,
            names,
            arguments.data,
            limits=_limits(arguments),
            deadline_seconds=arguments.deadline,
            outputs=arguments.outputs,
            layers=None if arguments.output is None else arguments.output / LAYERS,
            code=arguments.code,
            watcher=watcher,
        )
    if arguments.output is not None:
        _write(comparison, arguments.output)
    if arguments.json:
        _print_json(comparison.to_json())
    elif comparison.pairs:
        _print(comparison, arguments.output)
    else:
        found = ", ".join(each.name for each in comparison.backends) or "nothing"
        print(f"{arguments.outputs} has {found} for this model and data: another backend's outputs "
              "can be compared with it")  # fmt: skip
    return _gate(comparison, accepted, arguments.write_baseline)


def _check_given(arguments: argparse.Namespace) -> None:
    """Raises InputError where something is missing, or would not be read."""
    from tapml.comparing.sessions import is_plan
    from tapml_targets.errors import InputError

    if arguments.model is None:
        raise InputError("expected a model and --data; see `tapml compare --help`")
    if arguments.data is None and not is_plan(arguments.model):
        raise InputError(f"expected --data for {arguments.model}: an .npz, .npy, .csv or .txt "
                         "file, or a folder of images, arrays or texts")  # fmt: skip
    if given := [name for name, each in _budget(arguments).items() if each is not None]:
        raise InputError(f"--{given[0]} says how --fuzz FOLDER searches; nothing is drawn without")
    if arguments.write_thresholds is not None:
        raise InputError("--write-thresholds keeps what --calibrate RESULT chooses; nothing is "
                         "chosen without")  # fmt: skip


def _print_json(document: object) -> None:
    from tapml.durable.strict_json import to_strict

    print(json.dumps(to_strict(document), indent=1, allow_nan=False))


def _compare_stored(arguments: argparse.Namespace) -> int:
    """Compare what a folder has; 1 if a pair differs."""
    from tapml.comparing.run import compare_stored
    from tapml_targets.errors import InputError

    if arguments.backends or arguments.data or arguments.baseline or arguments.write_baseline:
        raise InputError("--outputs without a model compares what the folder has: leave out "
                         "--backends, --data and baselines, or name the model")  # fmt: skip
    comparisons = compare_stored(arguments.outputs, limits=_limits(arguments))
    for at, comparison in enumerate(comparisons):
        if arguments.output is not None:
            _write(comparison, arguments.output / f"{at + 1}-{comparison.model}")
        if not arguments.json:
            print(f"{comparison.model}, {comparison.instances} instances")
            _print(comparison, None)
    if arguments.json:
        _print_json([each.to_json() for each in comparisons])
    return max(each.exit_code for each in comparisons)


def _names(arguments: argparse.Namespace) -> list[str]:
    from tapml.comparing.run import names_of

    return names_of(arguments.backends)


def _budget(arguments: argparse.Namespace) -> dict[str, Any]:
    """What says how long and how --fuzz searches; None for the default."""
    return {name: getattr(arguments, name) for name in ("cases", "minutes", "seed")}


def _fuzz(arguments: argparse.Namespace) -> int:
    """Search; 1 if a cause was found."""
    from tapml.cli.progress import watch
    from tapml.comparing.data import read_data
    from tapml.comparing.fuzzing.search import fuzz
    from tapml_targets.errors import EXIT_MISMATCH, InputError

    if arguments.output or arguments.baseline or arguments.write_baseline:
        raise InputError("--fuzz keeps what it finds in its own folder: leave out --output, "
                         "--baseline and --write-baseline")  # fmt: skip
    with watch(quiet=arguments.quiet or arguments.json) as watcher:
        found = fuzz(
            arguments.fuzz,
            _names(arguments),
            model=arguments.model,
            data=None if arguments.data is None else read_data(arguments.data),
            code=arguments.code,
            **{name: each for name, each in _budget(arguments).items() if each is not None},
            limits=_limits(arguments),
            deadline_seconds=arguments.deadline,
            watcher=watcher,
        )
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print(f"{found.cases} cases, {found.invalid} of them no model; {len(found.causes)} causes")
        for each in found.causes:
            print(f"{each.cause}: {json.dumps(each.case)}\n  python {each.folder}/show.py")
    return EXIT_MISMATCH if found.causes else 0


def _gate(comparison: Comparison, accepted: Baseline | None, written: Path | None) -> int:
    from tapml_targets.errors import EXIT_MISMATCH

    if written is not None:
        from tapml.comparing.baseline import write_baseline

        write_baseline(comparison, written)
        return 0
    if accepted is None:
        return comparison.exit_code
    from tapml.comparing.baseline import new_findings

    compared = {frozenset(pair.backends) for pair in comparison.pairs}
    for each in accepted.pairs:
        if frozenset(each.backends) not in compared:
            print(f"not compared: {' / '.join(each.backends)}, which the baseline has",
                  file=sys.stderr)  # fmt: skip
    lines = new_findings(comparison, accepted)
    for line in lines:
        print(f"new: {line}", file=sys.stderr)
    return EXIT_MISMATCH if lines else 0


def _write(comparison: Comparison, folder: Path) -> None:
    from tapml.comparing.page import render_comparison
    from tapml.durable.files import write_json, write_text
    from tapml.durable.strict_json import to_strict

    writable_folder(folder)
    write_json(folder / "result.json", to_strict(comparison.to_json()))
    write_text(folder / "report.html", render_comparison(comparison))


def _print(comparison: Comparison, folder: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tapml.comparing.result import where
    from tapml.comparing.tokens import tokens_of
    from tapml.comparing.verdicts import reason_of_agreement

    console = Console(highlight=False, emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    of_tokens = any("KL" in pair.metrics for pair in comparison.pairs)
    more = ("KL", "same token first") if of_tokens else ()
    for title in ("pair", "verdict", "first layer", "blamed", "deviation", *more):
        table.add_column(title, overflow="fold")
    for pair in comparison.pairs:
        style = "green" if pair.status == "agree" else "red"
        largest = pair.metrics.get("elementwise", {}).get("largest")
        table.add_row(
            Text(" / ".join(pair.backends)),
            Text(pair.status, style=style),
            Text(where(pair)),
            Text(pair.blamed or "-"),
            Text("-" if largest is None else f"{largest:.1e}"),
            *(map(Text, tokens_of(pair.metrics)) if of_tokens else ()),
        )
    console.print(table)
    if comparison.unread:
        unread = ", ".join(comparison.unread)
        console.print(Text(f"not read, as no input is named so (labels are y): {unread}"))
    for pair in comparison.pairs:
        # The table has the deviation, and what is below says what is unsupported.
        largest = pair.metrics.get("elementwise", {}).get("largest")
        in_table = largest is not None and pair.reason == reason_of_agreement(largest)
        if pair.status != "unsupported" and not in_table:
            console.print(Text(f"{' / '.join(pair.backends)}: {pair.reason}"))
    for failure, layer, names in comparison.failures:
        at = f" at {layer}" if layer else ""
        console.print(Text(f"{failure.kind}{at} on {', '.join(names)}: {failure.message}"))
    for each in comparison.clusters:
        if len(each.pairs) > 1:
            by = f" by {each.relative_deviation}" if each.relative_deviation else ""
            on = f" on the instances {shorten(each.instances, 80)}" if each.instances else ""
            console.print(Text(f"one cluster: {len(each.pairs)} pairs part at "
                               f"{each.layer or 'no layer'}{by}{on}"))  # fmt: skip
    if folder is not None:
        console.print(Text(f"maps: {folder / 'report.html'}"), soft_wrap=True)
        for pair in comparison.pairs:
            if pair.script:
                console.print(Text(f"{pair.layer} alone: python {pair.script}"), soft_wrap=True)


def _calibrate(arguments: argparse.Namespace) -> int:
    import msgspec

    from tapml.comparing.calibration import calibrate, read_results, write_thresholds

    found = calibrate(list(read_results(arguments.calibrate)))
    if arguments.write_thresholds is not None:
        write_thresholds(found, arguments.write_thresholds)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(found), indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("tier", "setting", "found", "false", "held-out found", "held-out false", "folds"):
        table.add_column(title)
    for name, tier in found.tiers.items():
        if name == "published":
            continue
        folds = tier["folds"]
        found_held, faulty, false, clean = (
            sum(each[key] for each in folds) for key in ("found", "faulty", "false", "clean")
        )
        table.add_row(
            name,
            " ".join(f"{each:g}" for each in tier["setting"]),
            f"{tier['found']} of {tier['faulty']}",
            f"{tier['false']} of {tier['clean']}",
            f"{found_held} of {faulty}",
            f"{false} of {clean}",
            "; ".join(" ".join(f"{each:g}" for each in fold["setting"]) for fold in folds),
        )
    console = Console(highlight=False, emoji=False)
    console.print(table)
    console.print(
        f"p = {found.share:.1%}; the accuracy baseline misses "
        f"{found.tiers['accuracy']['missed']} faulty pairs that D_CLASS finds"
    )
    return 0


def _print_causes(arguments: argparse.Namespace) -> int:
    """What several results have in common; 1 if they accuse a backend."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tapml.comparing.calibration import read_results
    from tapml.comparing.causes import causes, faults, unique_inconsistencies
    from tapml.runs.wording import counted
    from tapml_targets.errors import EXIT_MISMATCH

    results = list(read_results(arguments.causes))
    found = causes(results)
    unique, total = len(unique_inconsistencies(results)), sum(len(faults(each)) for each in results)
    code = EXIT_MISMATCH if found else 0
    if arguments.json:
        _print_json({"comparisons": len(results), "unique": unique, "inconsistencies": total,
                     "causes": [each.to_json() for each in found]})  # fmt: skip
        return code
    console = Console(highlight=False, emoji=False)
    console.print(f"{counted(len(results), 'comparison')}, {unique} unique ({total}) "
                  f"inconsistencies, {counted(len(found), 'cause')}")  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("cause", "backend", "models", "pairs", "layers", "deviation"):
        table.add_column(title, overflow="fold")
    for each in found:
        plain = each.to_json()
        kind = f"{each.status} at {each.layer_kind}" if each.layer_kind else each.status
        layers = ", ".join(plain["layers"]) or each.place
        cells = (kind, each.backend, str(len(plain["models"])), str(len(each.found)), layers,
                 " ".join(plain["relative_deviation"]))  # fmt: skip
        table.add_row(*(Text(cell or "-") for cell in cells))
    if found:
        console.print(table)
    return code


def _list(as_json: bool) -> int:
    from tapml.backends.finding import backends, find_backend

    rows = []
    for name in backends():
        backend = find_backend(name)
        description = backend.description
        rows.append(
            {
                "name": name,
                "title": description.title,
                "formats": list(description.formats),
                "variants": dict(description.variants),
                "missing": backend.missing(),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("backend", "reads", "variants", "pip install"):
        table.add_column(title, overflow="fold")
    for name, row in zip(backends(), rows, strict=True):
        cells = [
            name,
            " ".join(row["formats"]),
            " ".join(row["variants"]),
            " ".join(row["missing"]),
        ]
        table.add_row(*(Text(cell or "-") for cell in cells))
    Console(highlight=False, emoji=False).print(table)
    return 0
