"""``tapml distributed settings``: combinations, the rules that prune them, and their audit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapml.runs.events import Event


def list_settings(
    names: list[str] | None, asked: Mapping[str, tuple[str, ...]], *, as_json: bool
) -> int:
    """Print every combination and what becomes of it."""
    from tapml.distributed.listing import settings

    found = settings(names, asked)
    if as_json:
        rows = [
            {
                "engine": each.setting.engine,
                "world": each.setting.world,
                "options": each.setting.options,
                "runs": each.runs,
                "rule": each.rule.name if each.rule else None,
                "reason": each.rule.reason if each.rule else each.missing,
            }
            for each in found
        ]
        print(json.dumps(rows, indent=1))
        return 0
    pruned: Counter[tuple[str, str, str]] = Counter()
    lacking: Counter[tuple[str, str]] = Counter()
    for each in found:
        engine = each.setting.engine
        if each.rule is not None:
            pruned[engine, each.rule.name, each.rule.reason] += 1
            print(f"{each.setting.name:58} pruned: {each.rule.name}")
        elif each.missing:
            lacking[engine, each.missing] += 1
            print(f"{each.setting.name:58} not here: {each.missing.partition(':')[0]}")
        else:
            print(f"{each.setting.name:58} runs")
    runs = sum(each.runs for each in found)
    print(
        f"\n{len(found)} settings: {runs} run here, {lacking.total()} need what is not here, "
        f"{pruned.total()} are pruned"
    )
    for (engine, reason), count in lacking.items():
        print(f"{engine}: {count} need {reason}")
    for (engine, name, reason), count in pruned.items():
        print(f"{engine}: {count} are pruned by {name}: {reason}")
    return 0


def list_published(names: list[str] | None, *, as_json: bool) -> int:
    """Print the paper's settings one by one."""
    from tapml.distributed.listing import engines_named

    found = [
        (engine.name, each)
        for engine in engines_named(names)
        for each in engine.settings.published()
    ]
    if as_json:
        rows = [
            {"engine": name, "setting": each.name, "runs": not each.missing, "reason": each.missing}
            for name, each in found
        ]
        print(json.dumps(rows, indent=1))
        return 0
    for name, each in found:
        reason = f"not here: {each.missing.partition(':')[0]}" if each.missing else "runs"
        print(f"{name:10} {each.name:58} {reason}")
    runs = sum(not each.missing for _, each in found)
    print(f"\n{len(found)} settings of the paper: {runs} run here")
    for reason, count in Counter(each.missing for _, each in found if each.missing).items():
        print(f"{count} need {reason}")
    return 0


def audit_settings(
    names: list[str] | None,
    asked: Mapping[str, tuple[str, ...]],
    job: Path,
    watcher: Callable[[Event], None],
    *,
    as_json: bool,
) -> int:
    """Run a job under the settings that rules prune; 1 if one of them is equal to one device."""
    from tapml.distributed.listing import audit

    found = audit(job, names, asked, watcher=watcher)
    rows: list[dict[str, Any]] = [
        {
            "setting": each.result.setting.name,
            "rule": each.rule,
            "outcome": str(each.result.outcome),
            "reason": each.result.reason,
        }
        for each in found
    ]
    stale = [each for each in found if each.stale]
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print(f"{row['setting']:58} {row['rule']}: {row['outcome']}. {row['reason']}".rstrip())
        print(f"\n{len(rows)} pruned settings tried: {len(stale)} are equal to one device")
    return 1 if stale else 0
