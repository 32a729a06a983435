"""The support matrix: 60 operators in two dtypes, with static and dynamic shapes, on every device.

Each case is a torch function that is imported, run on the processor, and replayed on the devices
with the float64 oracle, as `tapml validate` does it. Interrupt it at any time: cells that are done
are kept in --folder, and are made again only where operator, importer, code generator, oracle or
device changed.

    python3 scripts/support_matrix.py --folder support
    python3 scripts/support_matrix.py --devices opencl vulkan:1 --operators '*softmax' 'matrix*'
    python3 scripts/support_matrix.py --folder support --json support.json --page support.html

Its exit code is 0 if all passed or refused by a limit, 1 if something failed or did not run,
2 for bad input, 130 or 143 if it was interrupted or terminated.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from tapml.cli.termination import ended_by_sigterm, exit_code_of, word_for
from tapml.durable.strict_json import to_strict
from tapml.matrix.implementation import Column
from tapml.report.html import Section, render_sections
from tapml.runs.folder import RunFolder
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey
from tapml.verdicts.verdict import Cause
from tapml_rpc.local import open_local
from tapml_targets.description import fingerprint
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import RankedDevice, rank_devices

if TYPE_CHECKING:
    from scripts.support_operators import SupportedOperator
    from tapml.compiler.compiler import Compiler
    from tapml.matrix.report import Cell

Support: TypeAlias = Literal["pass", "simulated", "degraded", "fail", "refused by limit", "not run"]

REFERENCE: Final = "cpu"
DTYPES: Final = ("float32", "float16")
SHAPES: Final = ("static", "dynamic")
EXTENTS: Final = {"static": (5,), "dynamic": (5, 19)}
"""What ``n`` is: a dynamic plan is made once and run with each."""
OPERATORS_FILE: Final = Path(__file__).with_name("support_operators.py")
LETTERS: Final[dict[Support, str]] = {
    "pass": "p",
    "simulated": "s",
    "degraded": "d",
    "fail": "F",
    "refused by limit": "r",
    "not run": "-",
}
"""Mildest first."""
_CHIPS: Final[dict[Support, str]] = {
    "simulated": "pass",
    "refused by limit": "absent",
    "not run": "absent",
}
_OUT_OF_TIME: Final = "the time given was over"
_LONGEST_REASON: Final = 160
_LARGEST_EXTENT: Final = 64


@dataclass(frozen=True)
class Outcome:
    """A cell: what came of a case on a device, why, and the worst error over its unit."""

    support: Support
    reason: str = ""
    worst_ratio: float = 0.0


@dataclass(frozen=True)
class Case:
    """An operator in a dtype, with its ``n`` as a number or as a symbol."""

    operator: SupportedOperator
    dtype: str
    shapes: str

    def __str__(self) -> str:
        return f"{self.operator.name}, {self.dtype}, {self.shapes}"


KIND: Final = RunKind("tapml-support/1", statuses=tuple(LETTERS), results={"cell": Outcome})
Table: TypeAlias = dict[tuple[str, str, str, str], Outcome]
"""By operator, dtype, shapes and device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the matrix and write it."""
    options = _parse(arguments)
    try:
        with ended_by_sigterm():
            return _make(options)
    except KeyboardInterrupt as interrupt:
        kept = f" with --folder {options.folder}" if options.folder else ""
        print(f"{word_for(interrupt)}; run it again{kept} to continue", file=sys.stderr)
        return exit_code_of(interrupt)
    except TapmlError as error:
        print(f"support_matrix: {error}", file=sys.stderr)
        return error.exit_code


def _make(options: argparse.Namespace) -> int:
    from scripts.support_operators import OPERATORS

    chosen = [each for each in OPERATORS if _matches(each.name, options.operators)]
    if not chosen:
        known = ", ".join(each.name for each in OPERATORS)
        raise InputError(f"no operator is like {' or '.join(options.operators)}: there are {known}")
    devices = list(devices_of(options.devices))
    cases = [Case(*each) for each in product(chosen, DTYPES, SHAPES)]
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "support"
        table = fill(folder, cases, devices, options.minutes)
    names = [each.name for each in chosen]
    if options.json is not None:
        options.json.write_text(_json_text(to_json(table, names, devices)), encoding="utf-8")
    if options.page is not None:
        options.page.write_text(to_page(table, names, devices), encoding="utf-8")
    written = to_markdown(table, names, devices)
    if options.markdown is None:
        print(written)
    else:
        options.markdown.write_text(written, encoding="utf-8")
    bad = {"degraded", "fail", "not run"}
    return int(any(each.support in bad for each in table.values()))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--devices", nargs="+", default=[], metavar="NAME",
        help="platforms, or devices such as vulkan:1 (default: every device but checkers)",
    )  # fmt: skip
    parser.add_argument(
        "--operators", nargs="+", default=["*"], metavar="PATTERN", help="only those of these names"
    )
    parser.add_argument("--folder", type=Path, help="keep and reuse cells here (default: nowhere)")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no case after so long: it is not run"
    )
    for form in ("markdown", "json", "page"):
        parser.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write it as {form} here")
    return parser.parse_args(arguments)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def devices_of(wanted: Sequence[str]) -> Iterator[RankedDevice]:
    """The devices of this machine that are wanted, in the order of their names.

    Raises
    ------
    InputError
        If a wanted one is not here.
    """
    unseen = set(wanted)
    found: list[RankedDevice] = []
    for platform in platform_names():
        named = {each for each in wanted if each.partition(":")[0] == platform}
        if platform == REFERENCE or (wanted and not named):
            continue
        try:
            ranked = rank_devices(platform)
        except TapmlError as error:
            print(f"{platform}: {error}", file=sys.stderr)
            continue
        for device in ranked:
            unseen.discard(platform)
            checker = device.description.device_type == "checker"
            if device.spec in named or (not checker and (not wanted or platform in named)):
                unseen.discard(device.spec)
                found.append(device)
    if unseen or not found:
        absent = ", ".join(sorted(unseen)) or "any platform"
        raise InputError(f"there is no device of {absent}; `tapml devices` lists what is here")
    yield from sorted(found, key=lambda each: (each.description.platform, each.description.index))


def fill(
    folder: Path,
    cases: Sequence[Case],
    devices: Sequence[RankedDevice],
    minutes: float,
    written: Path = OPERATORS_FILE,
) -> Table:
    """Every cell, from the folder or made now; `written` is the file that the operators are in."""
    run_folder = RunFolder(folder, KIND)
    if not run_folder.exists:
        run_folder.begin()
    columns = {each.spec: _column(each) for each in devices}
    table: Table = {}
    deadline = time.monotonic() + 60 * minutes
    with (
        run_folder.run() as run,
        run.phases.phase("support", total=len(cases)) as phase,
        ExitStack() as stack,
    ):
        compiler = stack.enter_context(_LazyCompiler())
        for column in columns.values():
            stack.callback(column.close)
        for number, case in enumerate(cases, 1):
            keys = {each.spec: _key(case, each, written) for each in devices}
            known = {spec: run.journal.result(key) for spec, key in keys.items()}
            cells = {
                spec: msgspec.convert(each.data, Outcome)
                for spec, each in known.items()
                if each is not None
            }
            missing = [each for each in devices if each.spec not in cells]
            if time.monotonic() > deadline:
                cells |= {each.spec: Outcome("not run", _OUT_OF_TIME) for each in missing}
                missing = []
            for device, outcome in _run(case, missing, columns, compiler):
                cells[device.spec] = outcome
                if outcome.support != "not run":
                    plain = to_strict(asdict(outcome))
                    subject = f"{case} on {device.spec}"
                    run.journal.record(keys[device.spec], "cell", subject, outcome.support, plain)
            for spec, outcome in cells.items():
                table[case.operator.name, case.dtype, case.shapes, spec] = outcome
            said = "".join(LETTERS[cells[each.spec].support] for each in devices)
            print(f"[{number}/{len(cases)}] {case}: {said}", file=sys.stderr, flush=True)
            phase.progress(number, len(cases), str(case))
    return table


def _column(device: RankedDevice) -> Column:
    column = Column(device.spec, partial(open_local, device.description))
    column.problem = device.problem
    return column


@dataclass
class _LazyCompiler:
    """Starts no compile process where every cell is known."""

    made: Compiler | None = None

    def __enter__(self) -> _LazyCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self.made is not None:
            self.made.close()

    def get(self) -> Compiler:
        from tapml.compiler.compiler import Compiler

        if self.made is None:
            self.made = Compiler()
        return self.made


def _key(case: Case, device: RankedDevice, written: Path = OPERATORS_FILE) -> ResultKey:
    """All that a cell depends on."""
    from tapml.compiler.cache import generator_hash
    from tapml.importing.cache import importer_hash
    from tapml.oracles.oracle import ORACLE_VERSION
    from tapml.verdicts.policy import Policy
    from tapml_targets.installed import compiler_versions

    return ResultKey.of(
        case=str(case),
        operators=_operators_hash(written),
        importer=importer_hash(),
        oracle=str(ORACLE_VERSION),
        policy=Policy().hash,
        device=fingerprint(device.description),
        generator=generator_hash(device.description.platform),
        compiler=compiler_versions(),
    )


@cache
def _operators_hash(written: Path) -> str:
    from tapml.runs.result_key import hash_parts

    return hash_parts(text=written.read_text("utf-8"))


def _run(
    case: Case,
    devices: Sequence[RankedDevice],
    columns: dict[str, Column],
    compiler: _LazyCompiler,
) -> Iterator[tuple[RankedDevice, Outcome]]:
    """The case on each device, one after the other; one that breaks leaves the others alone."""
    import torch

    from scripts.support_operators import Called
    from tapml.compiler.reference import compile_reference
    from tapml.compiler.symbol_ranges import symbol_ranges
    from tapml.compiler.twin import compile_twins
    from tapml.execute.executor import Executor
    from tapml.importing.importer import import_module
    from tapml.importing.module import Module
    from tapml.matrix.compiling import compile_for_all
    from tapml.matrix.running import Matrix
    from tapml.oracles.oracle import Oracle
    from tapml.validation.observed import observe
    from tapml.verdicts.policy import Policy

    if not devices:
        return
    extents = EXTENTS[case.shapes]
    drawn = [case.operator.draw(extent, case.dtype) for extent in extents]
    symbol = torch.export.Dim("n", min=2, max=_LARGEST_EXTENT)
    axes = (tuple(each.dynamic(symbol) for each in case.operator.operands),)
    module = Called(case.operator.function).eval()
    example = [torch.from_numpy(each) for each in drawn[0]]
    try:
        made = import_module(module, example, dynamic=axes if case.shapes == "dynamic" else None)
        mod = Module(made.plan, weights=made.weights)
        executor = Executor(mod.plan, mod.weights, compile_reference(mod.plan))
        tests = []
        for arrays in drawn:
            named = dict(zip(mod.graph.inputs, arrays, strict=True))
            tests += observe(executor, mod.entry, named)[0]
    except TapmlError as error:
        for device in devices:
            yield device, Outcome("not run", f"not imported: {_one_line(error)}")
        return
    policy = Policy()
    # The largest `n` is what is checked against the limits.
    ranges = symbol_ranges(mod.plan, {mod.entry: mod.bind(drawn[-1])})
    operators = list(mod.plan.operators.values())
    with Oracle(mod.plan.operators, compile_twins, policy) as oracle:
        for device in devices:
            column = columns[device.spec]
            if column.session is None and not column.problem:
                column.open()
            if column.session is None:
                yield device, Outcome("not run", _one_line(column.problem))
                continue
            libraries = compile_for_all(compiler.get(), operators, [column])
            matrix = Matrix([column], oracle, policy, ranges=ranges)
            cells = []
            for operator in operators:
                own = [each for each in tests if each.operator == operator.name]
                compiled = {name: each[operator.name] for name, each in libraries.items()}
                row = matrix.operator(operator, own, compiled)
                cells.append(row.cells[column.label])
            yield device, _outcome(cells, device, case.dtype)


def _outcome(cells: Sequence[Cell], device: RankedDevice, dtype: str) -> Outcome:
    """The gravest of a case's cells; an operator that needs no kernel passes."""
    order = list(LETTERS)
    limits, simulated = device.description.limits, device.description.device_type == "simulated"
    found = Outcome("simulated" if simulated else "pass")
    for cell in cells:
        support = _support(cell, limits, dtype)
        if support == "pass" and simulated:
            support = "simulated"
        ratio = max(found.worst_ratio, cell.worst_ratio)
        if order.index(support) > order.index(found.support):
            found = Outcome(support, _one_line(cell.reason), ratio)
        found = replace(found, worst_ratio=ratio)
    return found


def _support(cell: Cell, limits: Limits, dtype: str) -> Support:
    lacks = dtype != DTYPES[0] and dtype not in limits.features
    if cell.cause == Cause.LIMIT or (cell.cause == Cause.NO_KERNEL and lacks):
        return "refused by limit"
    return cell.status


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 4] + " ..."


def _counts(table: Table, device: RankedDevice) -> Counter[Support]:
    return Counter(each.support for key, each in table.items() if key[3] == device.spec)


def _letters(table: Table, name: str, device: RankedDevice) -> str:
    """The four cells of an operator on a device: ``pp rr``."""
    return " ".join(
        "".join(LETTERS[table[name, dtype, shapes, device.spec].support] for shapes in SHAPES)
        for dtype in DTYPES
    )


def _reasons(table: Table) -> Iterator[tuple[str, str, str]]:
    """Operator, devices and cases, and why, where it is no plain pass or known limit."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    for (name, dtype, shapes, device), each in table.items():
        if each.support not in ("pass", "simulated", "refused by limit"):
            told = name, f"{each.support}: {each.reason}", device
            cases.setdefault(told, []).append(f"{dtype} {shapes}")
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (name, reason, device), found in cases.items():
        alike.setdefault((name, reason, ", ".join(sorted(found))), []).append(device)
    for (name, reason, found_in), devices in sorted(alike.items()):
        yield name, f"{', '.join(devices)} ({found_in})", reason


def to_markdown(table: Table, names: Sequence[str], devices: Sequence[RankedDevice]) -> str:
    """The matrix as a page of the documentation."""
    lines = [
        "# What runs where",
        "",
        f"{len(names)} operators, in float32 and float16, with static and dynamic shapes, by device"
        f" of one machine on {datetime.now(UTC):%Y-%m-%d}.",
        "Each was replayed against float64 as `tapml validate` does it. The processor is the"
        " reference and has no column.",
        "[support.json](support.json) has every cell's reason and worst error over its unit."
        " Made by",
        "",
        "    python3 scripts/support_matrix.py --folder support --markdown docs/support.md "
        "--json docs/support.json",
        "",
        "A cell has four letters: float32 static and dynamic, then float16 static and dynamic.",
        ", ".join(f"`{letter}` {word}" for word, letter in LETTERS.items()) + ".",
        "*Simulated* passed on a simulator of kernel text, which says nothing of a GPU.",
        "*Refused by limit*: the device lacks float16, or a kernel is beyond its limits.",
        "",
        f"| device | name | {' | '.join(LETTERS)} |",
        f"|---|---|{'---|' * len(LETTERS)}",
    ]
    for device in devices:
        counts = _counts(table, device)
        numbers = " | ".join(str(counts[word]) for word in LETTERS)
        lines.append(f"| {device.spec} | {_cell(device.description.name)} | {numbers} |")
    lines += [
        "",
        f"| operator | {' | '.join(each.spec for each in devices)} |",
        f"|---|{'---|' * len(devices)}",
    ]
    for name in names:
        cells = " | ".join(f"`{_letters(table, name, each)}`" for each in devices)
        lines.append(f"| {name} | {cells} |")
    reasons = [f"- {name}, {where}: {_cell(why)}" for name, where, why in _reasons(table)]
    if reasons:
        lines += ["", "## What did not pass", "", *reasons]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A device's own words in a table of Markdown."""
    plain = "".join(each if each.isprintable() else "?" for each in text)
    return plain.replace("|", "/").replace("<", "&lt;")


def to_json(table: Table, names: Sequence[str], devices: Sequence[RankedDevice]) -> dict[str, Any]:
    """The matrix as plain data, format ``tapml-support/1``."""
    return {
        "format": KIND.format,
        "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "operators": list(names),
        "devices": [
            {
                "device": each.spec,
                "name": each.description.name,
                "driver": each.description.driver_version,
                "type": each.description.device_type,
                "counts": dict(_counts(table, each)),
            }
            for each in devices
        ],
        "cells": [
            {
                **dict(zip(("operator", "dtype", "shapes", "device"), key, strict=True)),
                "support": each.support,
                "worst_ratio": to_strict(float(f"{each.worst_ratio:.3g}")),
                **({"reason": each.reason} if each.reason else {}),
            }
            for key, each in table.items()
        ],
    }


def _json_text(plain: dict[str, Any]) -> str:
    """A line for each device and cell, so that two versions can be compared."""
    rest = {key: value for key, value in plain.items() if key not in ("devices", "cells")}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    for key in ("devices", "cells"):
        rows = ",\n".join(json.dumps(each, allow_nan=False) for each in plain[key])
        lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
    return "{" + ",\n".join(lines) + "}\n"


def to_page(table: Table, names: Sequence[str], devices: Sequence[RankedDevice]) -> str:
    """The matrix as one file of HTML, a table for every dtype and kind of shapes."""
    heads: list[str] = ["device", "name", *LETTERS]
    counted: list[list[Any]] = [
        [each.spec, each.description.name, *(_counts(table, each)[word] for word in LETTERS)]
        for each in devices
    ]
    sections: list[Section] = [{"title": "Devices", "table": (heads, counted)}]
    for dtype, shapes in product(DTYPES, SHAPES):
        rows: list[list[Any]] = [
            [name, *(_chip(table[name, dtype, shapes, each.spec].support) for each in devices)]
            for name in names
        ]
        columns = ["operator", *(each.spec for each in devices)]
        sections.append({"title": f"{dtype}, {shapes} shapes", "table": (columns, rows)})
    reasons = [list(each) for each in _reasons(table)]
    if reasons:
        sections.append(
            {"title": "What did not pass", "table": (["operator", "where", "why"], reasons)}
        )
    headline = f"{len(names)} operators on {len(devices)} devices"
    return render_sections("What runs where", headline, sections)


def _chip(support: Support) -> dict[str, str]:
    return {"status": _CHIPS.get(support, support), "text": support}


if __name__ == "__main__":
    sys.exit(main())
