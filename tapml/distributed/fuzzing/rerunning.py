"""Runs a cluster's findings again with a fix, and counts what it resolves (D3, III-E)."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import msgspec

from tapml.distributed.checking import open_pool
from tapml.distributed.fuzzing.campaign import (
    MODELS,
    RESULT,
    Campaign,
    check_genome,
    read_genome,
)
from tapml.distributed.fuzzing.clusters import Cluster, finding_under
from tapml.distributed.fuzzing.patching import read_patch
from tapml.distributed.fuzzing.report import CLUSTER, CLUSTERS, PATCH
from tapml.distributed.results import Outcome
from tapml.durable.files import write_bytes, write_text, writing
from tapml.isolate.pool import Pool
from tapml.runs.events import Watcher, ignore
from tapml_targets.errors import InputError


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What a fix does to a cluster.

    Attributes
    ----------
    resolved, remaining, changed
        How many of its findings are equal to one device with the fix, how many are as before, and
        how many have another finding or cannot be judged.
    settings
        What each gives now, by model and setting.
    """

    cluster: str
    fix: str
    resolved: int
    remaining: int
    changed: int
    settings: tuple[tuple[str, str, str], ...]


def rerun(
    cluster: str | os.PathLike[str],
    fix: str | os.PathLike[str],
    *,
    watcher: Watcher = ignore,
    pool: Pool | None = None,
) -> Fixed:
    """Run all findings of a cluster again with a fix, and count what it resolves (D3, III-E).

    Parameters
    ----------
    cluster
        Its folder, below a fuzzer's.
    fix
        A Python file that each job loads last, see
        :class:`~tapml.distributed.fuzzing.campaign.Campaign`.

    Raises
    ------
    InputError
        If the folder holds no cluster, or the fix is no Python.
    """
    folder = Path(cluster)
    try:
        found = msgspec.json.decode((folder / CLUSTER).read_bytes(), type=Cluster)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{folder} holds no cluster: give a folder that `tapml distributed fuzz` wrote below "
            f"{CLUSTERS} ({error})"
        ) from error
    text = read_patch(Path(fix))
    place = folder / f"fix-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with writing(place):
        place.mkdir(exist_ok=True)
    if (folder / PATCH).is_file():
        # What the findings were made with stays; the fix comes after it.
        text = f"{read_patch(folder / PATCH)}\n{text}"
    write_text(place / PATCH, text)
    counts: Counter[str] = Counter()
    settings = []
    engines = tuple(dict.fromkeys(each.result.setting.engine for each in found.findings))
    with nullcontext(pool) if pool is not None else open_pool(engines) as used:
        for number, finding in enumerate(found.findings):
            setting = finding.result.setting
            campaign = Campaign(
                engines=(setting.engine,),
                worlds=(setting.world,),
                options={name: (value,) for name, value in setting.options.items()},
                patch=place / PATCH,
            )
            genome = read_genome(folder.parent.parent / MODELS / finding.model)
            told = check_genome(
                place / f"{finding.model}-{number}", genome, campaign, used, watcher
            )
            results = () if told.check is None else told.check.results
            if any(each.outcome is Outcome.EQUAL for each in results):
                verdict = "resolved"
            elif finding_under(results, setting, found.signature):
                verdict = "remaining"
            else:
                verdict = "changed"
            counts[verdict] += 1
            settings.append((finding.model, setting.name, verdict))
    fixed = Fixed(
        cluster=found.name,
        fix=str(fix),
        resolved=counts["resolved"],
        remaining=counts["remaining"],
        changed=counts["changed"],
        settings=tuple(settings),
    )
    write_bytes(place / RESULT, msgspec.json.encode(fixed))
    return fixed
