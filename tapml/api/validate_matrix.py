"""A module on several implementations: every operator and the whole, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tapml.api.device import Device
from tapml.api.module import Module
from tapml.api.observed import observe
from tapml.api.whole import WholeModule
from tapml.carving.probing import Probing
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compare.verdict import Verdict, not_run
from tapml.matrix.comparing import Comparison, Ran
from tapml.matrix.compiling import Libraries, compile_for_all, written_for
from tapml.matrix.implementation import OWN_SECONDS, Column, columns_of
from tapml.matrix.report import WHOLE, Cell, MatrixReport, Row
from tapml.matrix.running import Matrix, opened
from tapml.matrix.suite_matrix import lost_with
from tapml_rpc.client import Session
from tapml_targets.errors import DeviceLostError, TapmlError

Array = npt.NDArray[Any]


def validate_on_all(
    module: Module,
    arrays: Sequence[Array],
    targets: Sequence[Device],
    *,
    policy: Policy,
    kernels: Sequence[Path] = (),
) -> MatrixReport:
    """Run a module on several devices, the same Libraries on all of a platform, and compare.

    The reference is this process. A device that cannot be opened, or is lost for good, is "not
    run" with the reason.

    Parameters
    ----------
    kernels
        Folders of hand-written kernels, which take the compiled ones' place.

    Raises
    ------
    InputError
        If no device is given or one twice.
    """
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reference import compile_reference
    from tapml.compiler.twin import compile_twins
    from tapml.execute.executor import Executor

    columns = columns_of({each.name: _connecting(each) for each in targets}, len(targets))
    plan = module.plan
    operators = list(plan.operators.values())
    named = dict(zip(module.graph.inputs, arrays, strict=True))
    reference = compile_reference(plan)
    tests, outputs = observe(Executor(plan, module.weights, reference), module.entry, named)
    with (
        opened(columns),
        Compiler() as compiler,
        Oracle(plan.operators, compile_twins, policy) as oracle,
    ):
        written = written_for(kernels, columns)
        libraries = compile_for_all(compiler, operators, columns, written)
        matrix = Matrix(columns, Probing(oracle, lambda: reference), policy)
        rows = []
        for operator in operators:
            sources = tuple(origin.source for origin in plan.origins_of(operator.name))
            own = [test for test in tests if test.operator == operator.name]
            each = {platform: compiled[operator.name] for platform, compiled in libraries.items()}
            rows.append(matrix.operator(operator, own, each, sources))
        whole = _whole(WholeModule(module, arrays, outputs, policy), columns, libraries, policy)
        return MatrixReport(
            title=module.entry,
            reference="cpu",
            implementations=tuple(column.implementation() for column in columns),
            rows=tuple(rows),
            whole=whole,
            facts={"policy": policy.to_json(), "policy_hash": policy.hash},
            lost_with=lost_with(columns),
        )


def _connecting(device: Device) -> Callable[[], Session]:
    """Opens a session of a matrix's own, so that what goes wrong there costs the device nothing."""
    return lambda: device.open_another(own_seconds=OWN_SECONDS)


def _whole(
    module: WholeModule,
    columns: Sequence[Column],
    libraries: Mapping[str, Libraries],
    policy: Policy,
) -> Row:
    """The module as one call on every device."""
    ran: dict[str, Ran] = {}
    for column in columns:
        verdict, actual = _call(module, column, libraries)
        ran[column.label] = Ran(column.implementation(), verdict, actual)
    differences, bits = [], {}
    for platform in libraries:
        own = [ran[c.label] for c in columns if c.opened and c.description.platform == platform]
        as_one = replace(module.operator, name=WHOLE)
        comparison = Comparison(as_one, (WHOLE,), platform, policy)
        comparison.add(WHOLE, own, lambda: module.expectation, lambda: module.expectation)
        if comparison.difference is not None:
            differences.append(comparison.difference)
        if len(comparison.bits.labels) > 1:
            bits[platform] = comparison.bits
    cells = {
        label: Cell(each.verdict.status, each.verdict.worst_ratio, 1, each.verdict.reason)
        for label, each in ran.items()
    }
    return Row(WHOLE, (), cells, tuple(differences), bits)


def _call(
    module: WholeModule, column: Column, libraries: Mapping[str, Libraries]
) -> tuple[Verdict, Sequence[Array]]:
    if column.session is None:
        return not_run(column.problem), ()
    try:
        return module.run(libraries[column.description.platform], column.session)
    except DeviceLostError as error:
        column.lose(f"the device was lost running {WHOLE}: {error}", error.exit_code)
        return Verdict("fail", 0.0, (), f"the device was lost: {error}", "target"), ()
    except (TapmlError, OSError) as error:
        return Verdict("fail", 0.0, (), f"the device refused the call: {error}", "target"), ()
