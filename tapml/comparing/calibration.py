"""Thresholds from comparisons that were made: 5-fold cross-validation over models (section IV).

What a pair truly is does not come from the thresholds: it is faulty if a layer differs alone on
equal inputs, if a compiled run differs from its own layers, or if its file says so (``truth``: a
fault was planted, or was not). Every tier is calibrated alone, and so is the paper's baseline, the
difference in top-k accuracy, with what it misses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from tapml.comparing import metrics
from tapml.comparing.causes import Document
from tapml.comparing.layer_script import LAYERS
from tapml.comparing.verdicts import Thresholds
from tapml.durable.files import write_bytes
from tapml_targets.errors import InputError

FOLDS: Final = 5
SHARES: Final = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""What p may be."""
ACCURACY_STEPS: Final = tuple(each / 100 for each in range(51))
"""What T_AC may be: the difference must be larger."""
_LARGEST_BYTES: Final = 1 << 29
_JUDGED: Final = ("agree", "inconsistent")

Setting: TypeAlias = tuple[float, ...]
"""Thresholds of one tier: (T_C, k), (T_M,), (relative,), (T_AC, k)."""


@dataclass(frozen=True)
class Tier:
    """A way to tell that a pair is inconsistent.

    Attributes
    ----------
    name
        As in the metrics of a pair; ``accuracy`` is the baseline.
    settings
        The least strict first.
    share
        The share of instances that trigger under a setting; None where the tier does not apply.
    has_share
        Whether p applies.
    """

    name: str
    settings: tuple[Setting, ...]
    share: Callable[[Document, Setting], float | None]
    has_share: bool = True


@dataclass(frozen=True)
class Labelled:
    """A pair of one model, and whether it is faulty."""

    model: str
    metrics: Document
    faulty: bool


@dataclass(frozen=True)
class Score:
    """What one rule finds in some pairs."""

    faulty: int
    found: int
    clean: int
    false: int

    @property
    def errors(self) -> int:
        """Faulty pairs that it misses, and clean ones that it accuses."""
        return self.faulty - self.found + self.false


class Calibrated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of thresholds, and what they rest on."""

    class_distance: float
    top_k: int
    mad_distance: float
    relative: float
    share: float
    tiers: dict[str, Any] = {}
    format: str = "tapml-compare-thresholds/1"

    def limits(self) -> Thresholds:
        """As :func:`tapml.compare` takes them."""
        return Thresholds(
            class_distance=self.class_distance,
            mad_distance=self.mad_distance,
            relative=self.relative,
            share=self.share,
            top_k=self.top_k,
        )


def _class_share(found: Document, setting: Setting) -> float | None:
    distance, top_k = setting
    tier = found.get("D_CLASS")
    return tier and tier["counts"][int(top_k) - 1][int(distance) - 1] / found["instances"]


def _mad_share(found: Document, setting: Setting) -> float | None:
    tier = found.get("D_MAD")
    return tier and tier["counts"][metrics.MAD_STEPS.index(setting[0])] / found["instances"]


def _element_share(found: Document, setting: Setting) -> float | None:
    counts = found["elementwise"]["counts"]
    return float(counts[metrics.RELATIVE_STEPS.index(setting[0])] / found["instances"])


def _accuracy_share(found: Document, setting: Setting) -> float | None:
    threshold, top_k = setting
    tier = found.get("D_CLASS")
    if not tier:
        return None
    one, other = (each[int(top_k) - 1] for each in tier["accuracy"])
    return float(abs(one - other) > threshold)


TIERS: Final = (
    Tier("D_CLASS", tuple(product(metrics.CLASS_STEPS, metrics.TOP_KS)), _class_share),
    Tier("D_MAD", tuple((each,) for each in metrics.MAD_STEPS), _mad_share),
    Tier("elementwise", tuple((each,) for each in metrics.RELATIVE_STEPS), _element_share),
    Tier("accuracy", tuple(product(ACCURACY_STEPS, metrics.TOP_KS)), _accuracy_share,
         has_share=False),
)  # fmt: skip


def labelled(documents: Iterable[Document]) -> list[Labelled]:
    """The pairs whose outputs were compared."""
    return [
        Labelled(document["model"], pair["metrics"], pair.get("truth", _is_faulty(pair)))
        for document in documents
        for pair in document["pairs"]
        if pair["status"] in _JUDGED and "counts" in pair["metrics"].get("elementwise", {})
    ]


def _is_faulty(pair: Document) -> bool:
    return pair["status"] == "inconsistent" and bool(pair["guilty"] or pair["blamed"])


def score(tier: Tier, setting: Setting, share: float, pairs: Sequence[Labelled]) -> Score:
    """What a tier finds where it applies."""
    faulty = found = clean = false = 0
    for pair in pairs:
        triggers = tier.share(pair.metrics, setting)
        if triggers is None:
            continue
        accused = triggers > 0 and triggers >= share
        faulty += pair.faulty
        found += pair.faulty and accused
        clean += not pair.faulty
        false += not pair.faulty and accused
    return Score(faulty, found, clean, false)


def choose(tier: Tier, pairs: Sequence[Labelled], share: float) -> Setting:
    """The setting with the fewest errors, and of equals the fewest false ones.

    Of what is left the middle, so that it lies far from both sides; for the baseline the least, as
    in the paper.
    """
    found = {setting: score(tier, setting, share, pairs) for setting in tier.settings}
    least = min((each.errors, each.false) for each in found.values())
    best = [each for each in tier.settings if (found[each].errors, found[each].false) == least]
    return best[len(best) // 2] if tier.has_share else best[0]


def calibrate(documents: Sequence[Document]) -> Calibrated:
    """Thresholds from comparisons, each tier cross-validated over the models.

    Raises
    ------
    InputError
        If there are too few models, or all pairs are clean or all faulty.
    """
    pairs = labelled(documents)
    folds = _folds(pairs)
    tiers: dict[str, Any] = {}
    chosen: dict[str, Setting] = {}
    # One p holds for all tiers: the one under which those that count make the fewest errors.
    share = min(
        SHARES, key=lambda each: (sum(_errors(tier, pairs, each) for tier in TIERS[:3]), each)
    )
    for tier in TIERS:
        chosen[tier.name] = choose(tier, pairs, share)
        own = score(tier, chosen[tier.name], share, pairs)
        held_out = [_held_out(tier, pairs, fold, share) for fold in folds]
        tiers[tier.name] = {
            "setting": list(chosen[tier.name]),
            **_plain(own),
            "folds": held_out,
        }
    class_setting, accuracy = chosen["D_CLASS"], chosen["accuracy"]
    tiers["accuracy"]["missed"] = _missed(pairs, class_setting, accuracy, share)
    tiers["published"] = {
        "D_CLASS": _plain(score(TIERS[0], (8.0, 5), 0.0, pairs)),
        "D_MAD": _plain(score(TIERS[1], (0.2,), 0.0, pairs)),
    }
    return Calibrated(
        class_distance=class_setting[0],
        top_k=int(class_setting[1]),
        mad_distance=chosen["D_MAD"][0],
        relative=chosen["elementwise"][0],
        share=share,
        tiers=tiers,
    )


def _errors(tier: Tier, pairs: Sequence[Labelled], share: float) -> int:
    return score(tier, choose(tier, pairs, share), share, pairs).errors


def _held_out(
    tier: Tier, pairs: Sequence[Labelled], fold: frozenset[str], share: float
) -> dict[str, Any]:
    setting = choose(tier, [each for each in pairs if each.model not in fold], share)
    own = [each for each in pairs if each.model in fold]
    return {"models": sorted(fold), "setting": list(setting),
            **_plain(score(tier, setting, share, own))}  # fmt: skip


def _missed(
    pairs: Sequence[Labelled], class_setting: Setting, accuracy: Setting, share: float
) -> int:
    """Faulty pairs that D_CLASS finds and the baseline does not (paper: 35 of 340)."""
    missed = 0
    for pair in pairs:
        triggers = _class_share(pair.metrics, class_setting)
        if pair.faulty and triggers and triggers >= share:
            missed += not _accuracy_share(pair.metrics, accuracy)
    return missed


def _folds(pairs: Sequence[Labelled]) -> list[frozenset[str]]:
    models = sorted({each.model for each in pairs},
                    key=lambda name: hashlib.sha256(name.encode()).digest())  # fmt: skip
    faulty = sum(each.faulty for each in pairs)
    if len(models) < FOLDS or faulty in (0, len(pairs)):
        raise InputError(
            f"calibration needs at least {FOLDS} models, and both pairs that differ and pairs that "
            f"agree; found {len(models)} models and {len(pairs)} pairs, {faulty} of them faulty. "
            "Give more result.json files (tapml compare --output)"
        )
    return [frozenset(models[each::FOLDS]) for each in range(FOLDS)]


def _plain(found: Score) -> dict[str, int]:
    return {
        "faulty": found.faulty,
        "found": found.found,
        "clean": found.clean,
        "false": found.false,
    }


def read_results(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Comparisons from ``result.json`` files, or from folders that hold such files.

    Raises
    ------
    InputError
        If one is missing, or is something else.
    """
    for path in paths:
        files = [path]
        if path.is_dir():
            files = [each for each in sorted(path.rglob("*.json")) if not _is_of_layer(each)]
        if not files:
            raise InputError(f"{path} holds no result.json; tapml compare --output makes them")
        for file in files:
            try:
                if file.stat().st_size > _LARGEST_BYTES:
                    raise InputError(f"{file} is larger than {_LARGEST_BYTES} bytes")
                document = msgspec.json.decode(file.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:
                raise InputError(f"{file} cannot be read as a comparison: {error}") from error
            if not isinstance(document, dict) or document.get("format") != "tapml-compare/1":
                raise InputError(
                    f"{file} is no comparison; expected a result.json of tapml compare --output"
                )
            yield document


def _is_of_layer(file: Path) -> bool:
    """Whether a file belongs to a layer that lies beside a result."""
    return any(
        each.name == LAYERS and (each.parent / "result.json").is_file() for each in file.parents
    )


def write_thresholds(calibrated: Calibrated, file: Path) -> None:
    """Write what ``--thresholds`` reads; raises SetupError if that is impossible."""
    write_bytes(file, msgspec.json.format(msgspec.json.encode(calibrated), indent=1) + b"\n")


def read_thresholds(file: Path) -> Thresholds:
    """Read what :func:`write_thresholds` wrote; raises InputError if it is something else."""
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{file} is larger than {_LARGEST_BYTES} bytes")
        return msgspec.json.decode(file.read_bytes(), type=Calibrated).limits()
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); tapml compare --calibrate makes one"
        ) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{file} is no file of thresholds: {error}") from error
