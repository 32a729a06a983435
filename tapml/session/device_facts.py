"""Self-test results of a session's device: stored in its folder, and compared from run to run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.durable.files import write_json
from tapml.runs.events import Note, Watcher
from tapml_rpc.client import Session
from tapml_targets.description import measured_otherwise
from tapml_targets.errors import ProtocolError
from tapml_targets.self_test.facts import SelfTest, changed_facts, from_plain, to_plain

SELF_TEST: Final = "self_test.json"
_FORMAT: Final = "tapml-self-test/1"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class _Kept:
    """The device's name and driver, and its first and latest self-test."""

    device: str
    first: SelfTest
    latest: SelfTest


def record_self_test(
    folder: Path, session: Session, found: SelfTest | None, watcher: Watcher
) -> SelfTest | None:
    """Store the self-test, and invalidate the verdicts if the device behaves differently.

    The session's verdicts belong to the first self-test. If the same device and driver give other
    results, the device's description is marked
    (:func:`tapml_targets.description.measured_otherwise`), so every verdict is made again. If the
    first results return, the first verdicts are valid again.

    Parameters
    ----------
    folder
        The session's folder.
    session
        The description of its device is replaced if the results differ.
    found
        The new self-test; None if there was none.

    Returns
    -------
    SelfTest or None
        `found`, or else the latest stored self-test.
    """
    device = f"{session.device.platform} {session.device.name}; {session.device.driver_version}"
    kept = _read(folder / SELF_TEST, device)
    if found is None:
        return None if kept is None else kept.latest
    first = found if kept is None or not kept.first.facts else kept.first
    changed = changed_facts(first, found)
    if changed:
        details = "; ".join(f"{new.name} is {new.value}, was {old.value}" for old, new in changed)
        text = f"the device's self-test differs from this session's first one: {details}. "
        watcher(Note(f"{text}All verdicts are made again"))
        now = json.dumps([[new.name, new.value, new.sound] for _, new in changed])
        session.device = measured_otherwise(session.device, now)
    if kept is None or kept.first is not first or kept.latest.digest != found.digest:
        write_json(folder / SELF_TEST, _plain(_Kept(device, first, found)))
    return found


def _plain(kept: _Kept) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "device": kept.device,
        "first": to_plain(kept.first),
        "latest": to_plain(kept.latest),
    }


def _read(path: Path, device: str) -> _Kept | None:
    """The stored self-tests of this device; None if there are none or they cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        data = json.loads(path.read_bytes())
        if data["format"] != _FORMAT or data["device"] != device:
            return None
        return _Kept(device, from_plain(data["first"]), from_plain(data["latest"]))
    except (OSError, ValueError, KeyError, TypeError, ProtocolError):
        return None
