"""Lists the hand-written kernels that a session would use, with its last verdict on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapml.kernels.manifest import MANIFEST
from tapml.kernels.session_facts import LastVerdict, SessionFacts
from tapml.kernels.written import WrittenKernels
from tapml.session.operator_record import PASSING
from tapml.session.run_state import in_one_line
from tapml.suite.suite import Suite
from tapml_targets.errors import CompileError
from tapml_targets.library_format import library_hash, pack
from tapml_targets.target import Target


@dataclass(frozen=True)
class ListedKernel:
    """One kernel of the list.

    Attributes
    ----------
    operator
        Its operator; the folder's name if it belongs to no operator of the session.
    folder
        The kernel's folder.
    problem
        Why it cannot be used; empty if it can.
    last
        The session's last verdict on the operator, if any.
    current
        Whether that verdict is about the kernel's current files.
    """

    operator: str
    folder: Path
    problem: str
    last: LastVerdict | None
    current: bool

    def line(self) -> str:
        """One line of text."""
        if self.problem:
            said = self.problem.splitlines()[0]
        elif self.last is None:
            said = "not tried yet"
        elif not self.current:
            said = f"not tried yet; another kernel: {self.last.status}, {self.last.when}"
        else:
            ratio = self.last.worst_ratio
            shown = "" if ratio is None else f", worst ratio {ratio:.3g}"
            said = f"{self.last.status}{shown}, {self.last.when}"
            if self.last.status != PASSING:
                said += f": {in_one_line(self.last.reason)}"
        return f"{self.operator}  {said}\n  {self.folder}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        last = self.last
        return {
            "operator": self.operator,
            "folder": str(self.folder),
            "problem": self.problem,
            "last": None
            if last is None
            else {
                "status": last.status,
                "worst_ratio": last.worst_ratio,
                "time": last.time,
                "reason": last.reason,
            },
            "current": self.current,
        }


def list_kernels(
    facts: SessionFacts, target: Target, shared: Sequence[Path] = ()
) -> list[ListedKernel]:
    """The kernels of a session in the order of its operators, then those without an operator.

    Raises
    ------
    InputError
        If the session's suite cannot be read.
    """
    kernels = WrittenKernels(facts.kernel_folders(shared), target)
    with Suite.open(facts.suite) as suite:
        operators = suite.operators
    found = []
    for operator in operators.values():
        try:
            path = kernels.manifest_path(operator)
        except CompileError as error:
            found.append(ListedKernel(operator.name, Path(), str(error), None, False))
            continue
        if path is None:
            continue
        last = facts.last_verdict(operator.name)
        try:
            kernel = kernels.find(operator)
        except CompileError as error:
            found.append(ListedKernel(operator.name, path.parent, str(error), last, False))
            continue
        digest = "" if kernel is None else library_hash(pack(kernel.library))
        current = last is not None and bool(last.kernel) and digest.startswith(last.kernel)
        found.append(ListedKernel(operator.name, path.parent, "", last, current))
    own = kernels.folders[0]
    for path in sorted(own.glob(f"*/*/{MANIFEST}")):
        name, platform = path.parts[-3:-1]
        if name not in operators or platform != target.platform:
            problem = (
                f"the session moves to {target.platform}"
                if name in operators
                else "the session has no such operator"
            )
            found.append(ListedKernel(name, path.parent, problem, None, False))
    found += [ListedKernel("?", Path(), text, None, False) for text in kernels.unreadable]
    return found
