"""Shrinks a model that shows a finding, with Hypothesis: fewer layers, smaller sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tapml.distributed.fuzzing.campaign import Campaign, check_genome
from tapml.distributed.fuzzing.clusters import finding_under
from tapml.distributed.fuzzing.genome import Genome, Network, Recommender
from tapml.distributed.results import Setting
from tapml.isolate.pool import Pool
from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

TRIALS: Final = 40
"""Smaller models that are tried, unless told otherwise."""


def shrink(
    genome: Genome,
    setting: Setting,
    signature: str,
    campaign: Campaign,
    pool: Pool,
    trials: int = TRIALS,
) -> Genome:
    """The smallest model found that gives the same finding under the setting; else the same model.

    Raises SetupError if Hypothesis is missing.
    """
    options = {name: (value,) for name, value in setting.options.items()}
    one = replace(campaign, engines=(setting.engine,), worlds=(setting.world,), options=options)

    def shows(smaller: Genome) -> bool:
        with tempfile.TemporaryDirectory(prefix="tapml-shrink-") as folder:
            found = check_genome(Path(folder, "smaller"), smaller, one, pool)
        results = () if found.check is None else found.check.results
        return finding_under(results, setting, signature)

    return _smallest(genome, shows, trials)


def _smallest(genome: Genome, shows: Callable[[Genome], bool], trials: int) -> Genome:
    try:
        from hypothesis import HealthCheck, find, settings
        from hypothesis.errors import NoSuchExample
    except ImportError as error:
        raise SetupError(f"shrinking needs Hypothesis; {install_hint('fuzz')}") from error
    known: dict[Genome, bool] = {}

    def tried(smaller: Genome) -> bool:
        # Hypothesis may try more than it was told to: what is over the number is not run.
        if smaller not in known and len(known) < trials:
            known[smaller] = shows(smaller)
        return known.get(smaller, False)

    try:
        return find(
            smaller_than(genome),
            tried,
            settings=settings(
                max_examples=trials,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
            random=Random(0),  # noqa: S311
        )
    except NoSuchExample:
        return genome


def smaller_than(genome: Genome) -> SearchStrategy[Genome]:
    """Parts of a model with sizes up to its own; Hypothesis prefers few and small ones."""
    from hypothesis import strategies as st

    @st.composite
    def networks(draw: Any, genome: Network) -> Genome:
        kept = [gene for gene in genome.genes if draw(st.booleans())]
        return Network(
            shape=genome.shape,
            genes=tuple(kept),
            outputs=draw(st.integers(1, genome.outputs)),
            samples=genome.samples,
            tokens=genome.tokens,
        )

    @st.composite
    def recommenders(draw: Any, genome: Recommender) -> Genome:
        places = [place for place in range(len(genome.tables)) if draw(st.booleans())]
        tables = [genome.tables[place] for place in places or [0]]
        return Recommender(
            tables=tuple(
                type(each)(
                    rows=draw(st.integers(1, each.rows)),
                    dimension=4 * draw(st.integers(1, each.dimension // 4)),
                    longest=each.longest,
                    weighted=each.weighted,
                    frozen=each.frozen,
                )
                for each in tables
            ),
            collection=genome.collection,
            mean=genome.mean,
            dense=(1, 1),
            over=1,
            samples=draw(st.sampled_from(sorted({24, genome.samples}))),
            frozen_dense=genome.frozen_dense,
        )

    return networks(genome) if isinstance(genome, Network) else recommenders(genome)
