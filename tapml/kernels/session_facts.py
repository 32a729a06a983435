"""Facts of a session's journal for kernel development; read-only, without the lock.

`tapml offload` may run at the same time: SQLite shows the last committed state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tapml.kernels.written import OWN_FOLDER
from tapml.plan.graph_plan import Operator
from tapml.runs.journal import JOURNAL
from tapml.session.folder import is_session
from tapml.session.journal import open_journal
from tapml.session.run_settings import KERNELS, LIMITS, POLICY, within_profile
from tapml.session.selection import near_names
from tapml.session.settings import Settings
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError
from tapml_targets.limits import Limits
from tapml_targets.target import Target

SUITE: Final = "suite"


@dataclass(frozen=True)
class LastVerdict:
    """The newest operator-wise verdict of an operator.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    kernel
        Content hash of its Library; empty in an old journal.
    worst_ratio
        Of its tests; None if none ran, or if unknown or not finite.
    time
        Seconds since the epoch.
    reason
        The verdict's reason.
    """

    status: str
    kernel: str
    worst_ratio: float | None
    time: float
    reason: str = ""

    @property
    def when(self) -> str:
        """Its time as text."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))


@dataclass(frozen=True)
class SessionFacts:
    """The facts of a session that concern kernels.

    Attributes
    ----------
    folder
        The session's.
    settings
        Its settings.
    device
        The device it last ran on, such as ``opencl:0``; else that of its settings.
    policy
        The limits of its verdicts.
    shared
        Shared folders of kernels of its last run.
    limits
        Limit profile of its kernels; empty for the device's own limits.
    """

    folder: Path
    settings: Settings
    device: str
    policy: Policy
    shared: tuple[Path, ...]
    limits: str = ""

    def target(self, device: Limits) -> Target:
        """Target of its kernels on a device with limits `device`."""
        limits = within_profile(self.limits, self.settings.target, device)
        return Target(self.settings.target, limits=limits)

    @property
    def suite(self) -> Path:
        """Folder of its carved tests."""
        return self.folder / SUITE

    def kernel_folders(self, more: Sequence[Path] = ()) -> tuple[Path, ...]:
        """The session's own folder of kernels, then shared ones."""
        folders = dict.fromkeys((*more, *self.shared))
        return (self.folder / OWN_FOLDER, *folders)

    def last_verdict(self, operator: str) -> LastVerdict | None:
        """The newest operator-wise verdict of an operator, if any."""
        with open_journal(self.folder / JOURNAL, readonly=True) as journal:
            verdict = journal.latest("operator", operator)
        if verdict is None:
            return None
        ratio = verdict.data.get("worst_ratio") if verdict.data.get("tests") != 0 else None
        return LastVerdict(
            verdict.status,
            verdict.parts.get("kernel", ""),
            None if ratio is None else float(ratio),
            verdict.time,
            verdict.data.get("reason", ""),
        )


def read_facts(folder: Path) -> SessionFacts:
    """Read the facts of a session's journal.

    Raises
    ------
    InputError
        If the folder holds no session, or one without carved tests.
    """
    if not is_session(folder):
        raise InputError(
            f"{folder} is not a session: expected a folder made by `tapml offload --session`"
        )
    with open_journal(folder / JOURNAL, readonly=True) as journal:
        names = ("settings", POLICY, KERNELS, LIMITS, "device")
        found = {name: journal.read_setting(name) for name in names}
        kept = {name: text for name, text in found.items() if text is not None}
    if "settings" not in kept or not (folder / SUITE).is_dir():
        raise InputError(
            f"the session in {folder} has no carved tests yet; begin it with `tapml offload "
            f"--session {folder}`"
        )
    settings = Settings.from_json(kept["settings"])
    try:
        policy = Policy.from_json(json.loads(kept[POLICY])) if POLICY in kept else Policy()
    except (InputError, ValueError) as error:
        raise InputError(
            f"the policy in {folder / JOURNAL} cannot be read ({error}); name one with "
            f"`tapml offload --session {folder} --policy FILE`"
        ) from error
    try:
        shared = msgspec.json.decode(kept.get(KERNELS, "[]"), type=list[str])
    except ValueError as error:
        raise InputError(
            f"the folders of kernels in {folder / JOURNAL} cannot be read ({error}); name them "
            f"with `tapml offload --session {folder} --kernels FOLDER`"
        ) from error
    device = str(kept.get("device") or "") or settings.device or settings.target
    limits = str(kept.get(LIMITS) or "")
    return SessionFacts(folder, settings, device, policy, tuple(map(Path, shared)), limits)


def find_operator(suite: Suite, name: str) -> Operator:
    """An operator of a suite by name.

    Raises
    ------
    InputError
        If there is none; similar names are suggested.
    """
    operator = suite.operators.get(name)
    if operator is not None:
        return operator
    near = near_names(suite.operators, name)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise InputError(
        f"{suite.path.parent} has no operator {name!r}; {hint}it has "
        f"{', '.join(list(suite.operators)[:60])}"
    )
