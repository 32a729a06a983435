"""A repro folder for an operator that failed: everything needed to see it fail again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

from tapml.carving.replay_repro import Failure, write_repro
from tapml.carving.replay_results import ReplayResult
from tapml.durable.files import replace_folder, write_bytes, write_json, write_text
from tapml.graph.plan import Operator
from tapml.localize.diagnosis import Diagnosis
from tapml.offload.events import Note
from tapml.offload.workbench import Workbench
from tapml_targets.library import Library

REPRO: Final = "repro"

_RETRY: Final = """\
Operator {operator} could not move to {target}.

{reason}

failure.json   the same as data, with where in the model the operator comes from
operator.txt   the operator, as TVMScript
kernels.*      what the compiler made of it, where it got so far

Try again with:

    tapml offload --session {session}
"""


def write_test_failure(
    bench: Workbench, operator: Operator, library: Library, result: ReplayResult
) -> tuple[Path, Diagnosis | None]:
    """Write ``repro/<operator>`` for a carved test that did not pass; ``tapml replay`` takes it.

    The folder stands before the failure is looked into, which may take half a minute, and is
    written again with what was found.

    Returns
    -------
    tuple
        The folder and the diagnosis.
    """
    from tapml.localize.apart import diagnosed

    folder = bench.folder / REPRO / operator.name
    failure = Failure(
        operator=operator,
        result=result,
        library=library,
        device=bench.session.device,
        expectation=bench.probing.appeal(result.case),
        policy=bench.policy,
        origins=bench.imported.plan.origins_of(operator.name),
    )
    write_repro(folder, failure)
    bench.watcher(Note(f"{operator.name} failed: looking for the inner step and the cause"))
    failure = diagnosed(failure, bench.compiler, oracle=bench.oracle)
    return write_repro(folder, failure), failure.diagnosis


def write_other_failure(
    bench: Workbench, operator: Operator, library: Library | None, reason: str
) -> Path:
    """Write ``repro/<operator>`` where no test of the operator failed: compiler, limits, model."""
    folder = bench.folder / REPRO / operator.name
    with replace_folder(folder) as partial:
        _write_other(partial, bench, operator, library, reason)
    return folder


def _write_other(
    folder: Path, bench: Workbench, operator: Operator, library: Library | None, reason: str
) -> None:
    write_json(
        folder / "failure.json",
        {
            "operator": operator.name,
            "hash": operator.hash,
            "target": bench.settings.target,
            "device": bench.session.device.name,
            "reason": reason,
            "origins": [asdict(each) for each in bench.imported.plan.origins_of(operator.name)],
        },
    )
    write_text(folder / "operator.txt", operator.script)
    for index, module in enumerate(library.modules if library is not None else ()):
        write_bytes(folder / f"kernels.{index}.{module.dialect}", module.code)
    write_text(
        folder / "README.txt",
        _RETRY.format(
            operator=operator.name,
            target=bench.settings.target,
            reason=reason,
            session=bench.folder,
        ),
    )
