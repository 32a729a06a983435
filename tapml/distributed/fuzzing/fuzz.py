"""Fuzzing as one call: models are checked, findings put together, pages written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from tapml.distributed.checking import DEADLINE_SECONDS, open_pool
from tapml.distributed.engine import find_engine
from tapml.distributed.fuzzing.campaign import Campaign, ModelResult, run_campaign
from tapml.distributed.fuzzing.clusters import Cluster
from tapml.distributed.fuzzing.pages import write_pages
from tapml.distributed.fuzzing.report import CLUSTERS, write_clusters
from tapml.distributed.fuzzing.shrinking import TRIALS
from tapml.distributed.settings_space import check_options
from tapml.isolate.pool import Pool
from tapml.runs.events import Watcher, ignore
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class Fuzzed:
    """What a fuzzer found.

    Attributes
    ----------
    models
        The results of each model.
    clusters
        The kinds of findings; each has a folder of its name in :attr:`place`.
    place
        Their folder.
    page
        The report.
    """

    models: list[ModelResult]
    clusters: list[Cluster]
    place: Path
    page: Path

    @property
    def exit_code(self) -> int:
        """1 if there is a finding, else 0."""
        return 1 if self.clusters else 0


def fuzz(
    folder: str | os.PathLike[str],
    *,
    engines: Sequence[str] = ("ddp", "fsdp2"),
    worlds: Sequence[int] = (1, 2, 4),
    options: Mapping[str, Sequence[str]] | None = None,
    kinds: Sequence[str] = (),
    models: int = 4,
    seed: int = 0,
    samples: int | None = None,
    mixing: bool = False,
    patch: str | os.PathLike[str] | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    trials: int = TRIALS,
    workers: str = "",
    watcher: Watcher = ignore,
    pool: Pool | None = None,
) -> Fuzzed:
    """Check generated models on ranks against one device, and put like findings together.

    The same call goes on where an earlier one ended.

    Parameters
    ----------
    folder
        For models and findings.
    engines, worlds, options, kinds, models, seed, samples, mixing, patch, deadline_seconds
        As of :class:`~tapml.distributed.fuzzing.campaign.Campaign`.
    trials
        How many smaller models are tried for each kind of finding; 0 for none.
    workers
        The address of a scheduler of Dask, whose workers then check the models.

    Raises
    ------
    InputError
        If an argument is wrong.
    SetupError
        If PyTorch is missing, no process can be started, or the folder is held or full.
    """
    asked = {name: tuple(values) for name, values in (options or {}).items()}
    check_options([find_engine(name) for name in engines], asked)
    if samples and any(samples % each for each in worlds):
        raise InputError(
            f"{samples} samples do not divide by every world of "
            f"{','.join(map(str, worlds))}: choose a common multiple"
        )
    campaign = Campaign(
        engines=tuple(engines),
        worlds=tuple(worlds),
        options=asked,
        kinds=tuple(kinds),
        models=models,
        seed=seed,
        samples=samples,
        mixing=mixing,
        patch=None if patch is None else Path(patch),
        deadline_seconds=deadline_seconds,
    )
    root = Path(folder)
    with nullcontext(pool) if pool is not None else open_pool(campaign.engines) as used:
        found = run_campaign(root, campaign, watcher=watcher, pool=used, workers=workers)
        clusters = write_clusters(root, found, campaign, used, trials=trials, watcher=watcher)
    page = write_pages(root, found, clusters, root / CLUSTERS)
    return Fuzzed(found, clusters, root / CLUSTERS, page)
