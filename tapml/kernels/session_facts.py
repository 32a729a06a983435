"""What a session's journal says to whoever writes kernels for it; read only, without the lock.

`tapml offload` may hold the session meanwhile: SQLite shows the last committed state.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tapml.carving.suite import Suite
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator
from tapml.kernels.written import OWN_FOLDER
from tapml.offload.run_settings import KERNELS, LIMITS, POLICY, within_profile
from tapml.offload.selection import near_names
from tapml.offload.session import JOURNAL, is_session
from tapml.offload.settings import Settings
from tapml_targets.errors import InputError
from tapml_targets.limits import Limits
from tapml_targets.target import Target

SUITE: Final = "suite"
_BUSY_SECONDS: Final = 5.0
_LAST: Final = (
    "SELECT status, parts, data, time FROM verdict WHERE stage = 'operator' AND subject = ?"
    " ORDER BY id DESC LIMIT 1"
)
_LAST_OF_SCHEMA_1: Final = (
    "SELECT status, '{}', data, time FROM verdict WHERE stage = 'operator' AND subject = ?"
    " ORDER BY time DESC LIMIT 1"
)


@dataclass(frozen=True)
class LastVerdict:
    """The newest operator-wise verdict of an operator.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    kernel
        Content hash of the Library it is about; empty where the journal is an old one.
    worst_ratio
        Of its tests; None where none ran, where it is not known or not finite.
    time
        Seconds since the epoch.
    reason
        Why, in its words.
    """

    status: str
    kernel: str
    worst_ratio: float | None
    time: float
    reason: str = ""

    @property
    def when(self) -> str:
        """Its time, as a person reads it."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))


@dataclass(frozen=True)
class SessionFacts:
    """A session, as far as kernels are concerned.

    Attributes
    ----------
    folder
        The session's.
    settings
        What it was asked to do.
    device
        ``opencl:0``: where it ran last; else what its settings say.
    policy
        The limits of its verdicts.
    shared
        Folders of kernels its last run was given.
    limits
        Limit profile it makes kernels for; empty for the device's own limits.
    """

    folder: Path
    settings: Settings
    device: str
    policy: Policy
    shared: tuple[Path, ...]
    limits: str = ""

    def target(self, device: Limits) -> Target:
        """What its kernels are made for, on a device with limits `device`."""
        limits = within_profile(self.limits, self.settings.target, device)
        return Target(self.settings.target, limits=limits)

    @property
    def suite(self) -> Path:
        """Folder of its carved tests."""
        return self.folder / SUITE

    def kernel_folders(self, more: Sequence[Path] = ()) -> tuple[Path, ...]:
        """The session's own folder of kernels, then those shared with others."""
        folders = dict.fromkeys((*more, *self.shared))
        return (self.folder / OWN_FOLDER, *folders)

    def last_verdict(self, operator: str) -> LastVerdict | None:
        """The newest operator-wise verdict of an operator, None where there is none."""
        with _open(self.folder) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(verdict)")}
            query = _LAST if "parts" in columns else _LAST_OF_SCHEMA_1
            row = connection.execute(query, (operator,)).fetchone()
        if row is None:
            return None
        status, parts, data, moment = row
        try:
            said, kernel = json.loads(data), json.loads(parts).get("kernel", "")
            ratio, tests, reason = (said.get(n) for n in ("worst_ratio", "tests", "reason"))
            when = float(moment)
        except (ValueError, TypeError, AttributeError, RecursionError):
            # Somebody edited it: the next run of the session passes it over as well, and says so.
            return None
        rated = isinstance(ratio, int | float) and tests != 0
        return LastVerdict(
            str(status), str(kernel), float(ratio) if rated else None, when, str(reason or "")
        )


def read_facts(folder: Path) -> SessionFacts:
    """Read what a session's journal says.

    Raises
    ------
    InputError
        If the folder holds no session, or one without carved tests.
    """
    if not is_session(folder):
        raise InputError(
            f"{folder} is not a session: expected a folder made by `tapml offload --session`"
        )
    with _open(folder) as connection:
        kept = dict(connection.execute("SELECT name, value FROM session"))
    if "settings" not in kept or not (folder / SUITE).is_dir():
        raise InputError(
            f"the session in {folder} has no carved tests yet; begin it with `tapml offload "
            f"--session {folder}`"
        )
    settings = Settings.from_json(kept["settings"])
    try:
        policy = Policy.from_json(json.loads(kept[POLICY])) if POLICY in kept else Policy()
    except (InputError, ValueError, TypeError) as error:
        raise InputError(
            f"the policy in {folder / JOURNAL} cannot be read ({error}); name one with "
            f"`tapml offload --session {folder} --policy FILE`"
        ) from error
    try:
        shared = [Path(each) for each in json.loads(kept.get(KERNELS, "[]"))]
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the folders of kernels in {folder / JOURNAL} cannot be read ({error}); name them "
            f"with `tapml offload --session {folder} --kernels FOLDER`"
        ) from error
    device = str(kept.get("device") or "") or settings.device or settings.target
    limits = str(kept.get(LIMITS) or "")
    return SessionFacts(folder, settings, device, policy, tuple(shared), limits)


def find_operator(suite: Suite, name: str) -> Operator:
    """An operator of a suite by name.

    Raises
    ------
    InputError
        If there is none; near ones are named.
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


@contextmanager
def _open(folder: Path) -> Iterator[sqlite3.Connection]:
    """The journal, read only; as it lies there where even its lock files cannot be made."""
    name = quote(str((folder / JOURNAL).resolve()))
    failure: sqlite3.Error | None = None
    for mode in ("mode=ro", "immutable=1"):
        try:
            connection = sqlite3.connect(f"file:{name}?{mode}", uri=True, timeout=_BUSY_SECONDS)
            connection.execute("SELECT count(*) FROM session").fetchone()
        except sqlite3.Error as error:
            failure = error
            continue
        try:
            with closing(connection):
                yield connection
        except sqlite3.Error as error:
            failure = error
            break
        return
    raise InputError(f"the journal of {folder} cannot be read ({failure})") from failure
