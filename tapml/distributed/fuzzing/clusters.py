"""Findings of generated models, put together by what they look like: one cluster, one bug.

A cluster is an engine, an outcome and a signature. Of an inconsistency that is the mistake that
reproduces it; without one, the phase and the layer of the first wrong tensor, how its size
compares, and the parameters that trigger it. Of a crash it is what was raised, without its numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import msgspec

from tapml.distributed.fuzzing.campaign import ModelResult
from tapml.distributed.results import Outcome, RunResult, Setting
from tapml.distributed.triggers import with_triggers

SAMPLED: Final = 5
"""Findings of a cluster to look at (the paper samples, too)."""
_NUMBERS: Final = re.compile(r"[-+]?\d[\d.,e+-]*")
_ONLY: Final = re.compile(r"; only for .*| \(\d+ of \d+ wrong gradients\)")
_NEAR: Final = 1e-3
_VARYING: Final = ("world", "engine")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is not equal under a setting."""

    model: str
    result: RunResult


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of one kind.

    Attributes
    ----------
    name
        A short hash of the signature: the same in every run.
    signature
        What the findings share, in words.
    triggers
        Parameters that change the outcome when they change alone, of any of the findings.
    published
        Layers with the largest rate of change, the most frequent first: the paper's clusters.
    models, settings
        How many are concerned.
    findings, sampled
        All of them, and up to five to look at.
    """

    name: str
    outcome: Outcome
    signature: str
    mistake: str
    remedy: str
    triggers: tuple[str, ...]
    published: tuple[str, ...]
    models: int
    settings: int
    findings: tuple[Finding, ...]
    sampled: tuple[Finding, ...]


def cluster(results: Iterable[ModelResult]) -> list[Cluster]:
    """The clusters of all findings, the largest first."""
    groups: dict[str, list[Finding]] = {}
    for each in results:
        checked = () if each.check is None else with_triggers(each.check.results)
        for result in checked:
            if result.is_finding:
                finding = Finding(model=each.name, result=result)
                groups.setdefault(signature_of(result), []).append(finding)
    found = [_cluster(signature, members) for signature, members in groups.items()]
    return sorted(found, key=lambda each: (-len(each.findings), each.name))


def signature_of(result: RunResult) -> str:
    """What a finding shares with others of its bug."""
    head = f"{result.setting.engine}: {result.outcome}"
    if result.outcome is not Outcome.INCONSISTENT:
        if result.outcome is Outcome.SLOW:
            return head
        return f"{head} in {result.phase or 'a run'}: {_NUMBERS.sub('#', result.reason)}"
    mistake = general(result.mistake)
    if mistake:
        return f"{head}: {mistake}"
    triggers = [each for each in result.triggers if each not in _VARYING]
    text = f"{head}: {result.phase} of {result.layer or 'the model'}, {_ratio(result)}"
    return f"{text}, triggered by {', '.join(triggers)}" if triggers else text


def general(mistake: str) -> str:
    """A mistake without the names and numbers of one model."""
    return _NUMBERS.sub("#", re.sub(r"\bn\d+(\.\w+)*", "a parameter", _ONLY.sub("", mistake)))


def finding_under(results: Sequence[RunResult], setting: Setting, signature: str) -> bool:
    """Whether the result of a setting is a finding of that signature, whatever triggers it."""
    bare = signature.partition(", triggered by ")[0]
    return any(
        each.setting == setting and each.is_finding and signature_of(each).startswith(bare)
        for each in results
    )


def _cluster(signature: str, members: list[Finding]) -> Cluster:
    name = hashlib.sha256(signature.encode()).hexdigest()[:8]
    results = [each.result for each in members]
    layers = Counter(each.published_layer for each in results if each.published_layer)
    chosen = min(SAMPLED, len(members))
    sampled = Random(name).sample(members, chosen)  # noqa: S311
    return Cluster(
        name=name,
        outcome=results[0].outcome,
        signature=signature,
        mistake=general(results[0].mistake),
        remedy=results[0].remedy,
        triggers=tuple(dict.fromkeys(name for each in results for name in each.triggers)),
        published=tuple(layer for layer, _ in layers.most_common()),
        models=len({each.model for each in members}),
        settings=len({each.setting.name for each in results}),
        findings=tuple(members),
        sampled=tuple(sampled),
    )


def _ratio(result: RunResult) -> str:
    """The size of the wrong tensor in terms of the world."""
    if result.ratio is None:
        return "no size to compare"
    world = result.setting.world
    known = {"times the world": world, "over the world": 1 / world, "zero": 0.0, "as large": 1.0}
    for text, value in known.items():
        if abs(result.ratio - value) <= _NEAR * max(value, _NEAR):
            return text
    return "of another size"
