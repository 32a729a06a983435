"""Repro folders: everything needed to reproduce the failure of an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from tapml.compiler.preflight import require
from tapml.compiler.symbol_ranges import SymbolRanges, symbol_ranges
from tapml.devices.reach import open_another
from tapml.durable.files import replace_folder, write_bytes, write_json, write_text
from tapml.failures.diagnosis import Diagnosis
from tapml.offload.context import MigrationContext
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import KERNELS, Failure
from tapml.replaying.results import ReplayResult, Timing
from tapml.repro.attempt import ATTEMPT, ATTEMPT_LIBRARY, ATTEMPT_VERSION
from tapml.repro.writing import README, SCRIPT, SCRIPT_TEXT, write_kernels, write_repro
from tapml.runs.events import Note
from tapml.verdicts.verdict import Cause, failed
from tapml_targets.description import to_plain
from tapml_targets.errors import CompileError, LimitExceededError
from tapml_targets.library import Library
from tapml_targets.library_format import pack

REPRO: Final = "repro"

_RETRY: Final = """\
Operator {operator} could not be migrated to {target}.

{reason}

{how}

failure.json   the same as data, with where in the model the operator comes from
operator.txt   the operator, as TVMScript
kernels/       {kernels}
"""
_ALONE: Final = """\
Reproduce it, here or on any machine with the same kind of device:

    python {name}/repro.py

It needs the base install of tapml and a driver for {platform}. To try a fix, edit a source in
kernels/ and run it again."""
_WRITTEN: Final = """\
The kernel was written by hand. Edit it in {written}; every save is tested at once:

    tapml kernel check {session} {operator} --watch"""
_COMPILED: Final = "the compiled kernel, if there is one"
_BY_HAND: Final = "the hand-written kernel, if it could be read"
_SESSION: Final = """\
This folder is not enough to reproduce it: {why}. It needs the session, the model and the toolkit:

    tapml offload --session {session}"""


def write_test_failure(
    context: MigrationContext, operator: Operator, library: Library, result: ReplayResult
) -> tuple[Path, Diagnosis | None]:
    """Write ``repro/<operator>`` for a carved test that failed, for ``tapml replay``.

    The folder is written before the diagnosis, which may take half a minute, and again after it.

    Returns
    -------
    tuple
        The folder and the diagnosis.
    """
    from tapml.diagnosis.in_subprocess import diagnose_in_subprocess

    folder = context.folder / REPRO / operator.name
    failure = Failure(
        operator=operator,
        result=result,
        library=library,
        device=context.session.device,
        expectation=context.probing.appeal(result.case),
        policy=context.policy,
        origins=context.imported.plan.origins_of(operator.name),
    )
    write_repro(folder, failure)
    if result.verdict.cause.is_loss:
        # A diagnosis needs the device, which is lost.
        return folder, None
    context.watcher(Note(f"{operator.name} failed: looking for the inner step and the cause"))
    failure = diagnose_in_subprocess(
        failure,
        context.compiler,
        open_session=partial(open_another, context.session),
    )
    return write_repro(folder, failure), failure.diagnosis


class LastTest:
    """Iterates over tests and keeps the latest: it was running when the device was lost."""

    def __init__(self, tests: Iterable[CarvedCase]) -> None:
        self._tests = tests
        self.case: CarvedCase | None = None

    def __iter__(self) -> Iterator[CarvedCase]:
        for case in self._tests:
            self.case = case
            yield case


def lost_result(
    context: MigrationContext, case: CarvedCase, cause: Cause, reason: str
) -> ReplayResult | None:
    """The result of a test that lost the device; None if the operator has no float64 twin."""
    try:
        context.probing.appeal(case)
    except CompileError:
        return None
    timing = Timing(0, 0, None, 0, 0)
    return ReplayResult(case.id, case.operator, failed(cause, reason), timing, case)


def write_other_failure(
    context: MigrationContext,
    operator: Operator,
    library: Library | None,
    cause: Cause,
    reason: str,
    *,
    written: str = "",
) -> Path:
    """Write ``repro/<operator>`` for a failure of the compiler, the limits or the model.

    It includes ``repro.py`` if the kernels suffice to reproduce the failure. `written` is the
    folder of the hand-written kernel, if it replaces the compiled one.
    """
    folder = context.folder / REPRO / operator.name
    with replace_folder(folder) as partial:
        _write_other(partial, context, operator, library, cause, reason, written)
    return folder


def _write_other(
    folder: Path,
    context: MigrationContext,
    operator: Operator,
    library: Library | None,
    cause: Cause,
    reason: str,
    written: str,
) -> None:
    symbols = symbol_ranges(context.imported.plan).operators.get(operator.name, ())
    alone = library is not None and _shown_by_kernels(context, operator, library, cause)
    kernels: list[str | None] | None = None
    if library is not None:
        kernels = write_kernels(folder / KERNELS, library)
        write_bytes(folder / ATTEMPT_LIBRARY, pack(library))
    write_json(
        folder / ATTEMPT,
        {
            "format": ATTEMPT_VERSION,
            "operator": operator.name,
            "hash": operator.hash,
            "target": context.settings.target,
            "device": to_plain(context.session.device),
            "reason": reason,
            "cause": cause,
            "symbols": [dict(each) for each in symbols],
            "kernels": kernels if alone else None,
            "origins": [asdict(each) for each in context.imported.plan.origins_of(operator.name)],
        },
    )
    write_text(folder / "operator.txt", operator.script)
    how = _ALONE.format(name=operator.name, platform=context.settings.target)
    if alone:
        write_text(folder / SCRIPT, SCRIPT_TEXT)
    else:
        why = "the kernels run, but the complete model fails with them"
        if library is None:
            why = "there is no kernel yet"
            if written:
                why = "the hand-written kernel cannot be read"
        elif cause == Cause.NO_TEST:
            why = "no test of it was carved"
        how = _SESSION.format(why=why, session=context.folder)
    if written:
        how += "\n\n" + _WRITTEN.format(
            written=written, session=context.folder, operator=operator.name
        )
    page = _RETRY.format(
        operator=operator.name,
        target=context.settings.target,
        reason=reason,
        how=how,
        kernels=_BY_HAND if written else _COMPILED,
    )
    write_text(folder / README, page)


def _shown_by_kernels(
    context: MigrationContext, operator: Operator, library: Library, cause: Cause
) -> bool:
    """Whether the kernels suffice to reproduce the failure."""
    if cause == Cause.UNBUILT or cause.is_loss:
        return True
    symbols = symbol_ranges(context.imported.plan).operators.get(operator.name, ())
    try:
        require(library, context.target.limits, ranges=SymbolRanges({operator.name: symbols}))
    except LimitExceededError:
        return True
    return False
