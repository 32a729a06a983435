"""What a session's device does, measured: kept in the session's folder, and watched for changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.durable.files import write_json
from tapml.offload.events import Note, Watcher
from tapml_rpc.client import Session
from tapml_targets.errors import ProtocolError
from tapml_targets.fingerprint import measured_otherwise
from tapml_targets.self_test.facts import SelfTest, changed_facts, from_plain, to_plain

SELF_TEST: Final = "self_test.json"
_FORMAT: Final = "tapml-self-test/1"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class _Kept:
    """The device's name and driver, what was measured first, and what last."""

    device: str
    first: SelfTest
    latest: SelfTest


def settle_self_test(
    folder: Path, session: Session, found: SelfTest | None, watcher: Watcher
) -> SelfTest | None:
    """Keep what was measured; a device that does other things than before gets new verdicts.

    The facts measured first are those that the session's verdicts were made under. Where the same
    driver on the same device measures otherwise, its description is marked
    (:func:`tapml_targets.fingerprint.measured_otherwise`), so that every verdict is made again;
    where it measures as at first again, the first verdicts hold again.

    Parameters
    ----------
    folder
        The session's.
    session
        Its device's description is replaced where it has changed.
    found
        What was measured now; None where nobody did.

    Returns
    -------
    SelfTest or None
        What is known: `found`, or what was measured last.
    """
    device = f"{session.device.platform} {session.device.name}; {session.device.driver_version}"
    kept = _read(folder / SELF_TEST, device)
    if found is None:
        return None if kept is None else kept.latest
    first = found if kept is None or not kept.first.facts else kept.first
    changed = changed_facts(first, found)
    if changed:
        told = "; ".join(f"{new.name} is {new.value}, was {old.value}" for old, new in changed)
        watcher(
            Note(
                "the device's self-test finds other than when this session began: "
                f"{told}. Its verdicts are made again"
            )
        )
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
    """What was kept of this device; None where there is nothing, or what cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        data = json.loads(path.read_bytes())
        if data["format"] != _FORMAT or data["device"] != device:
            return None
        return _Kept(device, from_plain(data["first"]), from_plain(data["latest"]))
    except (OSError, ValueError, KeyError, TypeError, ProtocolError):
        return None
