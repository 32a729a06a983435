"""Differential testing of a module, operator by operator and end to end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from tapml.api.device import Device, device
from tapml.failures.diagnosis import Diagnosis
from tapml.importing.module import Module
from tapml.matrix.implementation import OWN_SECONDS, columns_of
from tapml.matrix.report import Cell, MatrixReport
from tapml.validation.module_subject import ModuleSubject
from tapml.validation.run import run_validation
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Status
from tapml_rpc.client import Session
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.execute.device_reference import DeviceReference

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OperatorReport:
    """One operator on the target.

    Attributes
    ----------
    operator
        Its name.
    cell
        Status, worst ratio, number of tests (call sites), reason and diagnosis.
    sources
        Lines of the model it comes from.
    """

    operator: str
    cell: Cell
    sources: tuple[str, ...]

    @property
    def status(self) -> Status:
        """``pass``, ``degraded``, ``fail`` or ``not run``."""
        return self.cell.status

    @property
    def worst_ratio(self) -> float:
        """Largest error over (sensitivity + ulp)."""
        return self.cell.worst_ratio

    @property
    def tests(self) -> int:
        """Call sites replayed."""
        return self.cell.tests

    @property
    def reason(self) -> str:
        """The reason, with numbers."""
        return self.cell.reason

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Inner step, positions and cause of a failure; None on a pass or without diagnosis."""
        return self.cell.diagnosis

    @property
    def lines(self) -> list[str]:
        """The operator in one line, followed by the lines of its diagnosis."""
        why = "" if self.status == "pass" else f": {self.reason}"
        found = [] if self.diagnosis is None else self.diagnosis.lines()
        return [
            f"{self.status:<8} {self.operator} ({self.tests} tests, worst ratio "
            f"{self.worst_ratio:.3g}){why}",
            *(f"  {line}" for line in found),
        ]


@dataclass(frozen=True)
class ValidationReport:
    """The result of :func:`validate` on one target.

    Attributes
    ----------
    status
        The worst status of all.
    operators
        One report per operator, in graph order.
    end_to_end
        The verdict on the module as one call on the target.
    reference, target
        Names of the devices.
    outputs
        The target's outputs; empty if the complete module could not run.
    """

    status: Status
    operators: tuple[OperatorReport, ...]
    end_to_end: Cell
    reference: str
    target: str
    outputs: tuple[Array, ...]

    @property
    def passed(self) -> bool:
        """Whether everything ran and passed."""
        return self.status == "pass"

    @classmethod
    def of(cls, found: MatrixReport, label: str, outputs: tuple[Array, ...]) -> ValidationReport:
        """The column of one device."""
        assert found.end_to_end is not None  # noqa: S101 - a module has this row
        reports = (
            OperatorReport(row.operator, row.cells[label], row.sources) for row in found.rows
        )
        whole = found.end_to_end.cells[label]
        return cls(found.status, tuple(reports), whole, found.reference, label, outputs)

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.target} against {self.reference}"]
        lines += [f"  {line}" for each in self.operators for line in each.lines]
        lines.append(f"  {self.end_to_end.status:<8} end to end: {self.end_to_end.reason}")
        return "\n".join(lines)


@overload
def validate(
    mod: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    reference: Device | None = None,
    target: Device | None = None,
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> ValidationReport: ...


@overload
def validate(
    mod: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    reference: Device | None = None,
    target: Sequence[Device],
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> MatrixReport: ...


def validate(
    mod: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    reference: Device | None = None,
    target: Device | Sequence[Device] | None = None,
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> ValidationReport | MatrixReport:
    """Run a module on reference and target, and compare every operator and the module's outputs.

    Parameters
    ----------
    mod
        A :class:`Module`, a Relax module, a GraphPlan or a ``torch.nn.Module``.
    inputs
        Arrays in the order of ``Module.inputs``; a torch module is exported with them, and takes
        them in dictionaries, lists and tuples, or by name, too.
    reference
        The reference device; default: ``tapml.cpu()``, which runs in this process.
    target
        The device under test; default: ``tapml.opencl()``. A list of devices compares each with
        the reference, and those that run the same kernels with each other.
    entry
        The entry, if `mod` has several.
    weights
        Values of a GraphPlan's weights.
    policy
        The limits; default: the calibrated ones.
    diagnose
        Diagnose the first few failures, some seconds each; only with a single target.
    kernels
        Folders of hand-written kernels, which replace compiled ones.

    Raises
    ------
    InputError
        If an input does not fit; the message names it.
    UnsupportedOperatorError
        If the module cannot be imported.
    """
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reference import compile_reference
    from tapml.execute.device_reference import compile_on, executor_on

    mod, inputs = _flat(mod, inputs)
    arrays = [np.asarray(each, order="C") for each in inputs]
    module = mod if isinstance(mod, Module) else Module(mod, entry, inputs=arrays, weights=weights)
    module.bind(arrays)
    policy = policy or Policy()
    several = target is not None and not isinstance(target, Device)
    targets: Sequence[Device]
    if target is None or isinstance(target, Device):
        targets = [target or device(DEFAULT_PLATFORM)]
    else:
        targets = target
    columns = columns_of({each.name: _connecting(each) for each in targets}, len(targets))
    source = reference or device("cpu")
    with Compiler() as compiler:
        operators: ReferenceModule | DeviceReference
        if source.name == device("cpu").name:
            operators = compile_reference(module.plan)
        else:
            operators = compile_on(source.session, module.plan, compiler)
        executor = executor_on(module.plan, module.weights, operators)
        subject = ModuleSubject(
            module, arrays, executor, policy, reference=source.name, expected=module.run(arrays)
        )
        found = run_validation(
            subject, columns, compiler, policy, kernels=kernels, diagnose=diagnose and not several
        )
    if several:
        return found
    label = targets[0].name
    return ValidationReport.of(found, label, subject.outputs[label])


def _flat(mod: Any, inputs: Any) -> tuple[Any, Sequence[Any]]:
    """A torch module of tensors alone, if its arguments are others, and the tensors in them."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(mod, torch.nn.Module):
        return mod, inputs
    from tapml.importing.flat_arguments import FlatModule, as_tensors

    tensors = (torch.Tensor, np.ndarray)
    named = isinstance(inputs, Mapping)
    values = list(inputs.values()) if named else list(inputs)
    leaves = [torch.utils._pytree.tree_leaves(each) for each in values]
    nested = any(
        not isinstance(each, tensors) and any(isinstance(leaf, tensors) for leaf in some)
        for each, some in zip(values, leaves, strict=True)
    )
    if not named and not nested and not any(each is None for each in values):
        return mod, inputs
    given = as_tensors(dict(inputs) if named else list(inputs))
    flat = FlatModule(mod, given)
    return flat.train(mod.training), [each.detach().numpy() for each in flat.tensors(given)]


def _connecting(device: Device) -> Callable[[], Session]:
    """Opens a separate session for a column, so that its errors do not affect the device's."""
    return lambda: device.open_another(own_seconds=OWN_SECONDS)
