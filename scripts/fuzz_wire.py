"""Fuzzes a server with invalid messages of every kind in PROTOCOL.md.

    python3 scripts/fuzz_wire.py --frames 200000 --seed 1              a stranger, over ZeroMQ
    python3 scripts/fuzz_wire.py --frames 200000 --seed 1 --session    with a valid session
    python3 scripts/fuzz_wire.py --binding websocket                   over WebSocket
    python3 scripts/fuzz_wire.py --binding curve                       over ZeroMQ with keys
    python3 scripts/fuzz_wire.py --seed 1 --session --only 4711        one conversation, shown

It starts the server, and a good client that checks the result of every operator test. The exit code
is 1 if the server died, grew, leaked or answered with an internal error, or if the good client saw
an error or waited for more than five seconds. A seed always sends the same bytes; a failure is
replayed on fresh servers and shrunk to the messages it needs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.wire_fuzz.bindings import BINDINGS
from scripts.wire_fuzz.campaign import Campaign, Finding, Report, Settings, replay
from scripts.wire_fuzz.messages import Shot
from scripts.wire_fuzz.mutations import shots
from scripts.wire_fuzz.peer import Heard
from scripts.wire_fuzz.shrink import shrink

_TRIES = 40
_SHRUNK_FINDINGS = 3


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign, or one conversation of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=20000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binding", choices=BINDINGS, default="zmq")
    parser.add_argument("--session", action="store_true", help="lie within a valid session")
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--only", type=int, metavar="K", help="say conversation K alone, shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    options = parser.parse_args(arguments)
    settings = Settings(
        frames=options.frames,
        seed=options.seed,
        binding=options.binding,
        session=options.session,
        device=options.device,
    )
    if options.only is not None:
        return _show(settings, options.only)
    # SIGTERM must not leave the server running.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    campaign = Campaign(settings, _progress)
    report = campaign.run()
    print(file=sys.stderr)
    data = to_dict(report)
    print(json.dumps(data, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    for finding in [each for each in report.findings if each.first >= 0][:_SHRUNK_FINDINGS]:
        _explain(settings, finding)
    return 1 if report.findings else 0


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    kinds: Counter[str] = Counter()
    lies: Counter[str] = Counter()
    for what, count in report.sent.items():
        kind, _, lie = what.partition(": ")
        kinds[kind] += count
        lies[lie] += count
    return {
        "settings": vars(report.settings),
        "seconds": round(report.seconds, 1),
        "frames": report.frames,
        "conversations": report.conversations,
        "sessions": report.sessions,
        "frames_by_message": dict(kinds.most_common()),
        "frames_by_lie": dict(lies.most_common()),
        "answers": dict(report.heard.answers.most_common()),
        "refusals": dict(report.heard.refusals.most_common()),
        "good_client": vars(report.good),
        "before": vars(report.before),
        "after": vars(report.after),
        "peak_resident_bytes": report.peak_bytes,
        "growth": report.growth,
        "sessions_left": report.sessions_left,
        "device_bytes_left": report.device_bytes_left,
        "findings": [vars(finding) for finding in report.findings],
    }


def _progress(frames: int) -> None:
    print(f"\r{frames} frames", end="", file=sys.stderr, flush=True)


def _show(settings: Settings, index: int) -> int:
    said = shots(settings.seed, index, blobs=True)
    for shot in said:
        print(_line(shot))
    heard = Heard()
    found = replay(settings, said, heard)
    print(f"answers: {dict(heard.answers)}, refusals: {dict(heard.refusals)}")
    print(found or "nothing wrong")
    return 1 if found else 0


def _explain(settings: Settings, finding: Finding) -> None:
    """Replay a failing session, shrink it, and print the rest."""
    print(f"\n{finding.what}\nseed {settings.seed}, conversations {finding.first}-{finding.last}:")
    said = [
        shot
        for index in range(finding.first, finding.last + 1)
        for shot in shots(settings.seed, index, blobs=True)
    ]

    def fails(some: list[Shot]) -> bool:
        return bool(replay(settings, some, Heard()))

    if not fails(said):
        print("it does not fail when these are replayed alone")
        return
    alone = next(
        (
            index
            for index in range(finding.last, finding.first - 1, -1)
            if fails(shots(settings.seed, index, blobs=True))
        ),
        None,
    )
    if alone is not None:
        print(f"again with --seed {settings.seed} --only {alone}")
        said = shots(settings.seed, alone, blobs=True)
    for shot in shrink(said, fails, _TRIES):
        print(_line(shot))


def _line(shot: Shot) -> str:
    frames = ", ".join(
        frame.hex() if len(frame) <= 600 else f"{frame[:300].hex()}... ({len(frame)} bytes)"
        for frame in shot.frames
    )
    return f"{shot.socket} [{shot.what}]: {frames}"


if __name__ == "__main__":
    sys.exit(main())
