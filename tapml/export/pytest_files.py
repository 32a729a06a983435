"""Exports a suite as plain pytest files: one per operator, with all files needed to run them.

    test_softmax.py ...    a parametrised test over the operator's carved tests
    cases.json             the tests of each file
    suite/                 the suite, linked or copied
    expectations.sqlite    each test's expected result and the error allowed by float64 analysis
    libraries/             compiled kernels by platform, if requested
    README.txt             the command

Running them does not need the model; with Libraries for the device's platform, it needs neither TVM
nor PyTorch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.durable.files import replace_folder
from tapml.export.cases import (
    CASES,
    LIBRARIES,
    SUITE,
    ExportedCases,
    ExportedFile,
    check_target,
)
from tapml.export.expectations import EXPECTATIONS, write_expectations
from tapml.oracles.expectation_store import encode
from tapml.oracles.oracle import Oracle
from tapml.oracles.probes import ProbeCase
from tapml.oracles.probing import Probing
from tapml.suite.index import INDEX_NAME
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.suite.tensors import PACKS_NAME
from tapml.verdicts.policy import Policy
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library_format import pack
from tapml_targets.limits import Limits
from tapml_targets.platforms import DEFAULT_PLATFORM, check_platform
from tapml_targets.target import Target

LONGEST_NAME: Final = 80
PORTABLE_LIMITS: Final = Limits(max_threads_per_block=256, max_shared_memory_bytes=32 << 10)
"""Limits of nearly every device: the usual minimum of OpenCL and Vulkan, WebGPU's default."""

_FILE: Final = '''\
"""Carved tests of one operator: what it read and what it wrote while a whole model ran."""

import pytest

from tapml.pytest_plugin import carved_cases


@pytest.mark.parametrize("case", carved_cases(__file__))
def {name}(tapml_replay, case):
    tapml_replay(case)
'''

_README: Final = """\
Tests of {operators} operators, carved from a run of the model {model}.

  pip install with tapml, pytest and the driver of a device, then

  pytest --tapml-device {device}                      in this folder
  pytest --tapml-device {device}:0 --tapml-device {device}:1 --junitxml report.xml
  pytest --tapml-repro failures                     a folder for each failure that replays alone
  pytest --tapml-policy policy.toml                 other limits

The model is not needed. Compiled kernels lie in libraries/ for: {platforms}. For any other platform
TVM compiles them here, once. Written by `tapml carve --export pytest`; docs/suites.md has the rest.
"""


@dataclass(frozen=True)
class ExportProgress:
    """Progress of an export: tests with written expectations, and the number of all tests."""

    tests: int
    total: int


def export_pytest(
    suite: Suite,
    folder: str | Path,
    *,
    filters: Filters | None = None,
    targets: Mapping[str, Target] | None = None,
    policy: Policy | None = None,
    overwrite: bool = False,
    progress: Callable[[ExportProgress], None] | None = None,
) -> ExportedCases:
    """Write a suite as pytest files.

    The output is deterministic, and a failed export leaves nothing behind.

    Parameters
    ----------
    suite
        A complete suite. Its files are linked if the file system supports it, else copied.
    folder
        The folder to write; must not exist unless `overwrite`.
    filters
        Filters on tests; None for all.
    targets
        Targets to compile for, by the name of the folder of their Libraries.
    policy
        Number and seed of the input perturbations.
    overwrite
        Whether to replace an earlier export at `folder`.
    progress
        Called after every test.

    Raises
    ------
    InputError
        If the suite is not complete, no test matches `filters`, or `folder` exists.
    SetupError
        If `folder` cannot be written.
    """
    target = Path(folder)
    filters = filters or Filters()
    _check(suite, target, overwrite=overwrite)
    cases = _cases(suite, filters)
    with replace_folder(target) as partial:
        _link_suite(suite.path, partial / SUITE)
        cases = _write_expectations(partial, suite, cases, policy or Policy(), progress)
        _write_texts(partial, cases, tuple(targets or ()))
        _write_libraries(partial / LIBRARIES, suite, cases, targets or {})
    return cases


def portable_target(platform: str) -> Target:
    """A target to compile for if the device is not known yet.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    return Target(check_platform(platform), limits=PORTABLE_LIMITS)


def file_names(operators: Iterable[str]) -> dict[str, str]:
    """A file name for each operator, which is also a function name: ``test_softmax.py``.

    The names consist of ASCII letters, digits and underscores, and are distinct.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for operator in sorted(operators):
        plain = re.sub(r"[^0-9a-z]+", "_", operator.lower()).strip("_")[:LONGEST_NAME]
        stem = base = f"test_{plain or 'operator'}"
        number = 2
        while stem in taken:
            stem = f"{base}_{number}"
            number += 1
        taken.add(stem)
        names[operator] = f"{stem}.py"
    return names


def _check(suite: Suite, target: Path, *, overwrite: bool) -> None:
    if not suite.complete:
        raise InputError(f"{suite.path} is of an interrupted carve: carve again to export it")
    check_target(target, overwrite=overwrite)


def _cases(suite: Suite, filters: Filters) -> ExportedCases:
    tests: dict[str, list[str]] = {}
    for test in suite.tests(filters):
        tests.setdefault(test.operator, []).append(test.id)
    if not tests:
        raise InputError(f"no test of {suite.path} matches the filters: there is nothing to export")
    names = file_names(tests)
    files = {names[operator]: ExportedFile(operator, tuple(ids)) for operator, ids in tests.items()}
    return ExportedCases(str(suite.facts.get("model", "")), dict(sorted(files.items())))


def _write_texts(folder: Path, cases: ExportedCases, platforms: Sequence[str]) -> None:
    for name in cases.files:
        (folder / name).write_text(_FILE.format(name=name.removesuffix(".py")), encoding="utf-8")
    text = json.dumps(cases.to_json(), indent=1)
    (folder / CASES).write_text(text + "\n", encoding="utf-8")
    readme = _README.format(
        operators=len(cases.files),
        model=json.dumps(cases.model),
        platforms=", ".join(platforms) or "none",
        device=next(iter(platforms), DEFAULT_PLATFORM),
    )
    (folder / "README.txt").write_text(readme, encoding="utf-8")


def _link_suite(suite: Path, folder: Path) -> None:
    """Link the suite's files; a finished suite is never modified, so they may be shared."""
    (folder / PACKS_NAME).mkdir(parents=True)
    for name in (INDEX_NAME, *(f"{PACKS_NAME}/{each.name}" for each in _packs(suite))):
        try:
            os.link(suite / name, folder / name)
        except OSError:
            # Another file system, or one without links.
            shutil.copyfile(suite / name, folder / name)


def _packs(suite: Path) -> list[Path]:
    return sorted((suite / PACKS_NAME).iterdir())


def _write_expectations(
    folder: Path,
    suite: Suite,
    cases: ExportedCases,
    policy: Policy,
    progress: Callable[[ExportProgress], None] | None,
) -> ExportedCases:
    """Write each test's expected result, and probes for each operator's first test."""
    probes: dict[str, list[str]] = {}
    total = sum(len(file.tests) for file in cases.files.values())
    scratch = folder / "oracle.sqlite"

    def rows(oracle: Oracle) -> Iterator[tuple[str, bytes | None, str | None]]:
        done = 0
        for file in cases.files.values():
            for identifier in file.tests:
                test = suite.test(identifier)
                try:
                    yield test.id, encode(oracle.appeal(test), test.read_outputs()), None
                except CompileError as error:
                    yield test.id, None, str(error)
                done += 1
                if progress is not None:
                    progress(ExportProgress(done, total))

    def made(probing: Probing) -> Iterator[ProbeCase]:
        for name, file in cases.files.items():
            for probe in probing.probes(suite.operators[file.operator], suite.test(file.tests[0])):
                probes.setdefault(name, []).append(probe.id)
                yield probe

    with Oracle(suite.operators, compile_twins, policy, cache=scratch) as oracle:
        probing = Probing(oracle, lambda: compile_reference(suite.operators.values()))
        write_expectations(folder / EXPECTATIONS, rows(oracle), made(probing))
    for left in folder.glob(f"{scratch.name}*"):
        left.unlink()
    files = {
        name: replace(file, probes=tuple(probes.get(name, ())))
        for name, file in cases.files.items()
    }
    return replace(cases, files=files)


def _write_libraries(
    folder: Path, suite: Suite, cases: ExportedCases, targets: Mapping[str, Target]
) -> None:
    """Write one Library per operator and target; replay reports those that do not compile."""
    operators = {file.operator: name for name, file in cases.files.items()}
    for platform, target in targets.items():
        (folder / platform).mkdir(parents=True)
        with Compiler() as compiler:
            wanted = [suite.operators[name] for name in operators]
            for operator, library in compiler.compile_all(wanted, target):
                if isinstance(library, CompileError):
                    continue
                stem = operators[operator.name].removesuffix(".py")
                (folder / platform / f"{stem}.tapml").write_bytes(pack(library))
