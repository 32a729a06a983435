"""Makes wrong kernels by rule, and counts how many of them tapml finds.

    python3 scripts/score_mutants.py                       300 mutants of the shipped model
    python3 scripts/score_mutants.py --dtype float16       the same in half precision
    python3 scripts/score_mutants.py --count 60 --seed 7 --json out.json
    python3 scripts/score_mutants.py --device chromium     mutants of WGSL in a browser
    python3 scripts/score_mutants.py --languages --markdown docs/mutants.md
                                                           every kernel language, three kinds

Every mutant is the compiler's own Library with one change; docs/mutants.md has the method and
results. Run it in the project's environment (scripts/test.py makes it). Ctrl-C prints partial
results. The exit code is 1 if an observable mutant was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.marked_section import write_between
from scripts.mutants.checking import open_checking
from scripts.mutants.kinds import sites
from scripts.mutants.languages import (
    BEGIN,
    END,
    LanguageScore,
    missed,
    score_language,
)
from scripts.mutants.languages import table as table_of_languages
from scripts.mutants.report import lines, summary, table
from scripts.mutants.sampling import Mutant, draw
from scripts.mutants.scoring import Score, Scorer
from scripts.mutants.subject import (
    Device,
    FarDevice,
    Subject,
    carve_suite,
    open_subject,
)
from scripts.mutants.text_kinds import TEXT_KINDS
from scripts.started_browser import BROWSERS, started_browser
from tapml.devices.reach import describe_device
from tapml.session.settings import Settings
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.platforms import own_platforms
from tapml_targets.ranking import find_device

SEED = 20261120
HOST = "cpu"
"""The platform of the reference; its kernels are no text."""


def main(arguments: list[str] | None = None) -> int:
    """Score; 0 if every observable mutant is found, 1 if not, 2 and more as ``tapml``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the draw (default: {SEED})")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument(
        "--device",
        default="opencl",
        help="opencl, opencl:1 (default: the best), webgpu:1, chromium, firefox",
    )
    parser.add_argument("--model", default="pydoc-llama", help="shipped model or local folder")
    parser.add_argument("--tests", type=int, default=6, help="tests per operator (default: 6)")
    parser.add_argument("--suite", type=Path, help="a suite of the model, carved where not given")
    parser.add_argument(
        "--check-seconds", type=float, default=900.0, metavar="N",
        help="time for Oclgrind, which looks at what left no trace (default: 900; 0 for none)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as data")
    parser.add_argument(
        "--languages", nargs="*", metavar="DEVICE",
        help="barriers dropped, indices shifted and waves halved in kernels of every language: on "
        "these devices (default: the best of each platform), with options of the code generator as "
        "vulkan:0,max_num_threads=64; --count is of each language",
    )  # fmt: skip
    parser.add_argument(
        "--each", nargs="+", choices=TEXT_KINDS, default=(), metavar="KIND",
        help="with --languages: every possible mutant of these kinds; --count is of the others",
    )  # fmt: skip
    parser.add_argument("--operators", type=int, default=10, help="with --languages (default: 10)")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the table there")
    options = parser.parse_args(arguments)
    try:
        return _score(options) if options.languages is None else _score_languages(options)
    except TapmlError as error:
        print(f"scripts/score_mutants.py: {error}", file=sys.stderr)
        return error.exit_code


def _score(options: argparse.Namespace) -> int:
    if options.device in BROWSERS:
        with started_browser(options.device) as (spec, variables):
            os.environ.update(variables)
            return _score_on(describe_device(spec), options, spec)
    return _score_on(find_device(options.device, options.dtype), options)


def _score_languages(options: argparse.Namespace) -> int:
    """Score every language; 1 if an observable mutant was missed or a right kernel is accused."""
    wanted = options.languages or [name for name in own_platforms() if name != HOST]
    found: list[LanguageScore] = []
    with tempfile.TemporaryDirectory(prefix="tapml-mutants-") as temporary:
        suite = options.suite or Path(temporary) / "suite"
        if options.suite is None:
            carve_suite(Settings(options.model, HOST, dtype=options.dtype), suite)
        for name in wanted:
            spec, *given = name.split(",")
            device = find_device(spec, options.dtype)
            found.append(
                score_language(
                    suite, device, tuple(sorted(_option(each) for each in given)),
                    operators=options.operators, count=options.count, each=options.each,
                    tests=options.tests, seed=options.seed, check_seconds=options.check_seconds,
                    say=lambda line: print(f"\r{line}".ljust(60), end="", file=sys.stderr),
                )
            )  # fmt: skip
            print(f"\n{name}: {found[-1].seconds:.0f} s", file=sys.stderr, flush=True)
            # What is done is kept, whatever becomes of the others.
            data = json.dumps([each.to_json() for each in found], indent=1)
            if options.json is not None:
                options.json.write_text(data, encoding="utf-8")
            if options.markdown is not None:
                write_between(options.markdown, BEGIN, END, table_of_languages(found))
    print("\n".join([table_of_languages(found), *missed(found)]))
    return 1 if missed(found) or any(each.clean for each in found) else 0


def _option(text: str) -> tuple[str, str]:
    """Name and value of ``max_num_threads=64``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"expected OPTION=VALUE behind a device, got {text!r}")
    return name, value


def _score_on(
    description: DeviceDescription, options: argparse.Namespace, spec: str | None = None
) -> int:
    print(f"device: {description.name} ({description.vendor_platform})", flush=True)
    with tempfile.TemporaryDirectory(prefix="tapml-mutants-") as temporary:
        folder = options.suite or Path(temporary) / "suite"
        if options.suite is None:
            settings = Settings(options.model, description.platform, dtype=options.dtype)
            carve_suite(settings, folder)
        with (
            open_subject(folder, description, per_operator=options.tests) as subject,
            _device(description, Path(temporary) / "cache", spec) as device,
        ):
            scorer = Scorer(subject, device)
            mutants, possible = _drawn(subject, options)
            print(f"{len(mutants)} mutants of {possible} possible ones", flush=True)
            scores: list[Score] = []
            whole = _collect(scorer.score(mutants), scores, len(mutants))
            clean = scorer.largest_clean()
            # Oclgrind takes OpenCL alone.
            if whole and options.check_seconds and description.platform == "opencl":
                device.close()
                with open_checking(subject) as checking:
                    checked: list[Score] = []
                    made = checking.check(scores, options.check_seconds)
                    whole = _collect(made, checked, len(scores))
                done = {score.mutant.name: score for score in checked}
                scores = [done.get(score.mutant.name, score) for score in scores]
    print("\n".join(["", *lines(scores, clean)]))
    if options.json is not None:
        data: dict[str, Any] = {
            "dtype": options.dtype,
            "device": f"{description.name} ({description.vendor_platform})",
            "seed": options.seed,
            "possible": possible,
            "by_kind": table(scores),
            **summary(scores, clean),
            "mutants": [score.to_json() for score in scores],
        }
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if not whole:
        return 130
    return 1 if any(score.outcome == "missed" for score in scores) else 0


def _device(description: DeviceDescription, cache: Path, spec: str | None) -> Device:
    return Device(description, cache) if spec is None else FarDevice(description, spec)


def _drawn(subject: Subject, options: argparse.Namespace) -> tuple[tuple[Mutant, ...], int]:
    """The mutants in graph order, and how many could have been made."""
    places = {name: sites(library) for name, library in subject.libraries.items()}
    mutants = draw(places, options.count, options.seed)
    order = {name: position for position, name in enumerate(subject.libraries)}
    possible = sum(len(found) for kinds in places.values() for found in kinds.values())
    return tuple(sorted(mutants, key=lambda m: (order[m.operator], m.name))), possible


def _collect(made: Iterator[Score], scores: list[Score], count: int) -> bool:
    """Fill `scores` and print progress; False if Ctrl-C ends it early."""
    missed = 0
    try:
        for score in made:
            scores.append(score)
            missed += score.outcome == "missed"
            print(
                f"\r{len(scores)} of {count}, {missed} missed; "
                f"{score.mutant.operator}: {score.mutant.site.kind}".ljust(100)[:100],
                end="",
                file=sys.stderr,
                flush=True,
            )
    except KeyboardInterrupt:
        return False
    finally:
        print(file=sys.stderr)
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("scripts/score_mutants.py: interrupted", file=sys.stderr)
        sys.exit(130)
