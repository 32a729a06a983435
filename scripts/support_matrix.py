"""The support matrix: 60 operators in two dtypes, with static and dynamic shapes, on every device.

Each case is a torch function that is imported, run on the processor, and replayed on the devices
with the float64 oracle, as `tapml validate` does it. Interrupt it at any time: cells that are done
are kept in --folder. They are looked at again where operator, importer, code generator, oracle or
device changed, and made again only where kernels, operators, oracle or device are others.

    python3 scripts/support_matrix.py --folder support
    python3 scripts/support_matrix.py --devices opencl vulkan:1 --operators '*softmax' 'matrix*'
    python3 scripts/support_matrix.py --folder support --json support.json --page support.html
    python3 scripts/support_matrix.py --folder support --devices vulkan --earlier support.json

Its exit code is 0 if all passed or refused by a limit, 1 if something failed or did not run,
2 for bad input, 130 or 143 if it was interrupted or terminated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.kept_study import run_kept
from scripts.support_pages import (
    DTYPES,
    FORMAT,
    LETTERS,
    SHAPES,
    Outcome,
    Shown,
    Support,
    Table,
    by_order,
    json_text,
    merged,
    read_matrix,
    to_json,
    to_markdown,
    to_page,
)
from tapml.durable.strict_json import to_strict
from tapml.matrix.implementation import Column
from tapml.runs.folder import RunFolder
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey
from tapml.verdicts.verdict import Cause
from tapml_rpc.local import open_local
from tapml_targets.description import fingerprint
from tapml_targets.errors import CompileError, InputError, TapmlError
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import RankedDevice, rank_devices

if TYPE_CHECKING:
    from scripts.support_operators import Array, SupportedOperator
    from tapml.compiler.compiler import Compiler
    from tapml.importing.module import Module
    from tapml.matrix.report import Cell
    from tapml.matrix.running import Judging
    from tapml.plan.graph_plan import Operator
    from tapml.runs.journal import Journal
    from tapml.validation.observed import ObservedTest
    from tapml.verdicts.policy import Policy
    from tapml_targets.library import Library

Compiled: TypeAlias = "tuple[tuple[Operator, Library | CompileError], ...]"
"""A case's operators with their kernels for a device."""
REFERENCE: Final = "cpu"
EXTENTS: Final = {"static": (5,), "dynamic": (5, 19)}
"""What ``n`` is: a dynamic plan is made once and run with each."""
OPERATORS_FILE: Final = Path(__file__).with_name("support_operators.py")
_OUT_OF_TIME: Final = "the time given was over"
_LONGEST_REASON: Final = 160
_VERSION_DIGITS: Final = 8
_LARGEST_EXTENT: Final = 64


class Tried(Protocol):
    """What :func:`run_case` runs: a computation with its inputs and its oracle."""

    @property
    def dtype(self) -> str:
        """Of its floats."""

    def drawn(self) -> list[list[Array]]:
        """The inputs of each of its tests."""

    def imported(self, arrays: Sequence[Array]) -> Module:
        """Its plan, made with these inputs. Raises TapmlError if it cannot be imported."""

    def oracle(self, mod: Module, policy: Policy) -> AbstractContextManager[Judging]:
        """What gives the expected outputs of the plan's operators."""


@dataclass(frozen=True)
class Case:
    """An operator in a dtype, with its ``n`` as a number or as a symbol."""

    operator: SupportedOperator
    dtype: str
    shapes: str

    def __str__(self) -> str:
        return f"{self.operator.name}, {self.dtype}, {self.shapes}"

    def drawn(self) -> list[list[Array]]:
        """The inputs of each of its tests."""
        return [self.operator.draw(extent, self.dtype) for extent in EXTENTS[self.shapes]]

    def imported(self, arrays: Sequence[Array]) -> Module:
        """Its plan, made with these inputs. Raises TapmlError if it cannot be imported."""
        import torch

        from scripts.support_operators import Called
        from tapml.importing.importer import import_module
        from tapml.importing.module import Module

        symbol = torch.export.Dim("n", min=2, max=_LARGEST_EXTENT)
        axes = (tuple(each.dynamic(symbol) for each in self.operator.operands),)
        module = Called(self.operator.function).eval()
        example = [torch.from_numpy(each) for each in arrays]
        made = import_module(module, example, dynamic=axes if self.shapes == "dynamic" else None)
        return Module(made.plan, weights=made.weights)

    def oracle(self, mod: Module, policy: Policy) -> AbstractContextManager[Judging]:
        """What gives the expected outputs of the plan's operators."""
        from tapml.compiler.twin import compile_twins
        from tapml.oracles.oracle import Oracle

        return Oracle(mod.plan.operators, compile_twins, policy)


KIND: Final = RunKind(FORMAT, statuses=tuple(LETTERS), results={"cell": Outcome})


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the matrix and write it."""
    options = _parse(arguments)
    again = "run it again" + (f" with --folder {options.folder}" if options.folder else "")
    return run_kept("support_matrix", lambda: _make(options), again)


def _make(options: argparse.Namespace) -> int:
    from scripts.support_operators import OPERATORS

    chosen = [each for each in OPERATORS if _matches(each.name, options.operators)]
    if not chosen:
        known = ", ".join(each.name for each in OPERATORS)
        raise InputError(f"no operator is like {' or '.join(options.operators)}: there are {known}")
    devices = list(devices_of(options.devices))
    earlier = read_matrix(options.earlier) if options.earlier else ({}, [], [])
    cases = [Case(*each) for each in product(chosen, DTYPES, SHAPES)]
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "support"
        table = fill(folder, cases, devices, options.minutes)
    table = merged(table, earlier[0])
    named = {*earlier[1], *(each.name for each in chosen)}
    names = [each.name for each in OPERATORS if each.name in named]
    here = {each.spec: shown(each) for each in devices}
    columns = by_order({**{each.device: each for each in earlier[2]}, **here}.values())
    if options.json is not None:
        options.json.write_text(json_text(to_json(table, names, columns)), encoding="utf-8")
    if options.page is not None:
        options.page.write_text(to_page(table, names, columns), encoding="utf-8")
    platforms = {each.device.partition(":")[0] for each in columns} & set(platform_names())
    versions = {platform: version_of(platform) for platform in platforms}
    written = to_markdown(table, names, columns, versions)
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
    parser.add_argument(
        "--earlier", type=Path, metavar="FILE",
        help="take cells that are not made now from this file, which --json wrote",
    )  # fmt: skip
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
) -> Table:
    """Every cell, from the folder or made now."""
    run_folder = RunFolder(folder, KIND)
    if not run_folder.exists:
        run_folder.begin()
    columns = {each.spec: column_of(each) for each in devices}
    table: Table = {}
    deadline = time.monotonic() + 60 * minutes
    with (
        run_folder.run() as run,
        run.phases.phase("support", total=len(cases)) as phase,
        ExitStack() as stack,
    ):
        compiler = stack.enter_context(LazyCompiler())
        for column in columns.values():
            stack.callback(column.close)
        for number, case in enumerate(cases, 1):
            keys = {each.spec: _key(case, each) for each in devices}
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
            day = f"{datetime.now(UTC):%Y-%m-%d}"
            content = partial(_content, case)
            recall = partial(_recall, run.journal, content)
            for device, made, libraries in run_case(case, missing, columns, compiler, recall):
                platform = device.description.platform
                version = version_of(platform)
                outcome = replace(made, made=made.made or day, version=version)
                cells[device.spec] = outcome
                if outcome.support != "not run":
                    plain = to_strict(asdict(outcome))
                    subject = f"{case} on {device.spec}"
                    for key in (keys[device.spec], content(device, libraries)):
                        run.journal.record(key, "cell", subject, outcome.support, plain)
            for spec, outcome in cells.items():
                table[case.operator.name, case.dtype, case.shapes, spec] = outcome
            said = "".join(LETTERS[cells[each.spec].support] for each in devices)
            print(f"[{number}/{len(cases)}] {case}: {said}", file=sys.stderr, flush=True)
            phase.progress(number, len(cases), str(case))
    return table


def column_of(device: RankedDevice) -> Column:
    column = Column(device.spec, partial(open_local, device.description))
    column.problem = device.problem
    return column


@dataclass
class LazyCompiler:
    """Starts no compile process where every cell is known."""

    made: Compiler | None = None

    def __enter__(self) -> LazyCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self.made is not None:
            self.made.close()

    def get(self) -> Compiler:
        """The compiler, from the first call on."""
        from tapml.compiler.compiler import Compiler

        if self.made is None:
            self.made = Compiler()
        return self.made


def shown(device: RankedDevice) -> Shown:
    """What the pages say of a device."""
    about = device.description
    return Shown(device.spec, about.name, about.driver_version, about.device_type)


def _key(case: Case, device: RankedDevice) -> ResultKey:
    """All that a cell depends on."""
    platform = device.description.platform
    return ResultKey.of(
        case=str(case),
        device=fingerprint(device.description),
        **_code(platform),
    )


def _content(case: Case, device: RankedDevice, made: Compiled) -> ResultKey:
    """All that a cell depends on once it is compiled: other code may make the same."""
    from tapml.oracles.oracle import ORACLE_VERSION
    from tapml.runs.result_key import hash_parts
    from tapml.verdicts.policy import Policy
    from tapml_targets.library_format import pack

    kernels = {
        each.hash: str(found) if isinstance(found, CompileError) else pack(found).hex()
        for each, found in made
    }
    return ResultKey.of(
        case=str(case),
        device=fingerprint(device.description),
        operators=_operators_hash(OPERATORS_FILE),
        kernels=hash_parts(**kernels),
        oracle=str(ORACLE_VERSION),
        policy=Policy().hash,
    )


def _recall(
    journal: Journal, content: Callable[..., ResultKey], device: RankedDevice, made: Compiled
) -> Outcome | None:
    found = journal.result(content(device, made))
    return None if found is None else msgspec.convert(found.data, Outcome)


def version_of(platform: str, written: Path = OPERATORS_FILE) -> str:
    """A name of all code that a cell depends on; `written` is the file with its operators."""
    from tapml.runs.result_key import hash_parts

    return hash_parts(**_code(platform, written))[:_VERSION_DIGITS]


def _code(platform: str, written: Path = OPERATORS_FILE) -> dict[str, str]:
    from tapml.compiler.cache import generator_hash
    from tapml.importing.cache import importer_hash
    from tapml.oracles.oracle import ORACLE_VERSION
    from tapml.verdicts.policy import Policy
    from tapml_targets.installed import compiler_versions

    return {
        "operators": _operators_hash(written),
        "importer": importer_hash(),
        "oracle": str(ORACLE_VERSION),
        "policy": Policy().hash,
        "generator": generator_hash(platform),
        "compiler": compiler_versions(),
    }


@cache
def _operators_hash(written: Path) -> str:
    from tapml.runs.result_key import hash_parts

    return hash_parts(text=written.read_text("utf-8"))


def run_case(
    case: Tried,
    devices: Sequence[RankedDevice],
    columns: Mapping[str, Column],
    compiler: LazyCompiler,
    recall: Callable[[RankedDevice, Compiled], Outcome | None],
) -> Iterator[tuple[RankedDevice, Outcome, Compiled]]:
    """The case on each device, one after the other; one that breaks leaves the others alone.

    What `recall` knows of the same kernels is not run again.
    """
    from tapml.compiler.symbol_ranges import symbol_ranges
    from tapml.matrix.compiling import compile_for_all
    from tapml.matrix.running import Matrix
    from tapml.verdicts.policy import Policy

    if not devices:
        return
    drawn = case.drawn()
    try:
        mod = case.imported(drawn[0])
    except TapmlError as error:
        for device in devices:
            yield device, Outcome("not run", f"not imported: {_one_line(error)}"), ()
        return
    observed: list[ObservedTest] = []
    policy = Policy()
    # The largest `n` is what is checked against the limits.
    ranges = symbol_ranges(mod.plan, {mod.entry: mod.bind(drawn[-1])})
    operators = list(mod.plan.operators.values())
    with case.oracle(mod, policy) as oracle:
        for device in devices:
            column = columns[device.spec]
            if column.session is None and not column.problem:
                column.open()
            if column.session is None:
                yield device, Outcome("not run", _one_line(column.problem)), ()
                continue
            libraries = compile_for_all(compiler.get(), operators, [column])
            of_device = libraries[device.description.platform]
            compiled = tuple((each, of_device[each.name]) for each in operators)
            if (known := recall(device, compiled)) is not None:
                yield device, known, compiled
                continue
            try:
                observed = observed or _observed(mod, drawn)
            except TapmlError as error:
                yield device, Outcome("not run", f"no reference: {_one_line(error)}"), ()
                continue
            matrix = Matrix([column], oracle, policy, ranges=ranges)
            cells = []
            for operator in operators:
                own = [each for each in observed if each.operator == operator.name]
                by_platform = {name: each[operator.name] for name, each in libraries.items()}
                row = matrix.operator(operator, own, by_platform)
                cells.append(row.cells[column.label])
            yield device, _outcome(cells, device, case.dtype), compiled


def _observed(mod: Module, drawn: Sequence[Sequence[Array]]) -> list[ObservedTest]:
    """Each call site with each of the inputs, on the reference."""
    from tapml.compiler.reference import compile_reference
    from tapml.execute.executor import Executor
    from tapml.validation.observed import observe

    executor = Executor(mod.plan, mod.weights, compile_reference(mod.plan))
    named = (dict(zip(mod.graph.inputs, arrays, strict=True)) for arrays in drawn)
    return [test for inputs in named for test in observe(executor, mod.entry, inputs)[0]]


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


if __name__ == "__main__":
    sys.exit(main())
