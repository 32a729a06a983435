"""The clusters of a fuzzer's folder on disk: for each its findings, a shrunk model, a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tapml.distributed.fuzzing.campaign import (
    GENOME,
    MODELS,
    Campaign,
    ModelResult,
    read_genome,
)
from tapml.distributed.fuzzing.clusters import Cluster, cluster
from tapml.distributed.fuzzing.genome import Genome
from tapml.distributed.fuzzing.patching import JOB, read_patch
from tapml.distributed.fuzzing.script import script_of
from tapml.distributed.fuzzing.shrinking import TRIALS, shrink
from tapml.distributed.fuzzing.source import source_of
from tapml.durable.files import write_bytes, write_text, writing
from tapml.isolate.pool import Pool
from tapml.runs.events import Event, Watcher, ignore

CLUSTERS: Final = "clusters"
CLUSTER: Final = "cluster.json"
PATCH: Final = "patch.py"
_SCRIPT: Final = "script.py"
"""A cluster's folder: the shrunk model as a job, its genome, and a script without tapml."""


@dataclass(frozen=True)
class ClusterWritten(Event):
    """A cluster has its folder."""

    cluster: Cluster
    folder: Path


def write_clusters(
    folder: Path,
    results: Sequence[ModelResult],
    campaign: Campaign,
    pool: Pool,
    *,
    trials: int = TRIALS,
    watcher: Watcher = ignore,
) -> list[Cluster]:
    """Write each cluster's folder; one that is complete is not shrunk again.

    `trials` is how many smaller models are tried for each cluster; 0 keeps the model found.
    """
    found = cluster(results)
    for each in found:
        place = folder / CLUSTERS / each.name
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        if not (place / _SCRIPT).is_file():
            _write_smallest(folder, place, each, campaign, pool, trials)
        write_bytes(place / CLUSTER, msgspec.json.encode(each))
        watcher(ClusterWritten(each, place))
    return found


def _write_smallest(
    folder: Path, place: Path, each: Cluster, campaign: Campaign, pool: Pool, trials: int
) -> None:
    def cost(finding_of: int) -> tuple[int, int]:
        finding = each.findings[finding_of]
        size = (folder / MODELS / finding.model / JOB).stat().st_size
        return finding.result.setting.world, size

    finding = each.findings[min(range(len(each.findings)), key=cost)]
    genome: Genome = read_genome(folder / MODELS / finding.model)
    if trials:
        setting = finding.result.setting
        genome = shrink(genome, setting, each.signature, campaign, pool, trials)
    source = source_of(genome, f"The smallest model found for {each.name}.")
    write_bytes(place / GENOME, msgspec.json.encode(genome))
    write_text(place / JOB, source)
    patch = read_patch(campaign.patch)
    if patch:
        write_text(place / PATCH, patch)
    # Last, because a folder that has it is complete.
    write_text(place / _SCRIPT, script_of(source, finding.result, patch))
