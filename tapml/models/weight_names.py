"""The weights of a class beside those in the files, by name and shape, before any is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tapml.models.checkpoint import Checkpoint
from tapml_targets.errors import InputError


def check_weights(empty: Any, checkpoint: Checkpoint) -> None:
    """Compare the weights of a class's module, which may be on ``meta``, with those in the files.

    Raises
    ------
    InputError
        If some are missing, unexpected or of another shape; the message has name and shapes.
    """
    expected = {name: tuple(value.shape) for name, value in empty.state_dict().items()}
    stored = _as_named_here(empty, checkpoint)
    # As the configurations say, that of a part too (an encoder and a decoder of two classes).
    tied = set(empty.all_tied_weights_keys)
    made = _matching(expected.keys(), empty._keys_to_ignore_on_load_missing)
    both = expected.keys() & stored.keys()
    for kind, names, remedy in (
        ("missing", expected.keys() - stored.keys() - tied - made, "fetch the folder again"),
        (
            "mismatched",
            {name for name in both if expected[name] != stored[name]},
            "config.json and the weights belong to different models",
        ),
        (
            "unexpected",
            stored.keys() - expected.keys(),
            "the model would be computed without them; check config.json",
        ),
    ):
        if names:
            first = min(names)
            raise InputError(
                f"{checkpoint.folder} has {len(names)} {kind} weights, first {first} (expected "
                f"{expected.get(first, 'none')}, found {stored.get(first, 'none')}): {remedy}"
            )


def _matching(names: Iterable[str], patterns: Iterable[str] | None) -> set[str]:
    return {name for name in names for each in patterns or () if re.search(each, name)}


def plain_names(empty: Any, checkpoint: Checkpoint) -> dict[str, str] | None:
    """The stored name of each weight of the class; None if one is made of several stored ones."""
    found: dict[str, str] = {}
    for name, here, pattern, _ in _renamed(empty, checkpoint):
        if pattern is not None or here in found:
            return None
        found[here] = name
    return found


def _as_named_here(empty: Any, checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shapes of the stored weights under the names of the class, without those it computes now.

    Files have older names; ``transformers`` knows which. A weight that it makes from several stored
    ones has the shape it will have.
    """
    known = empty.state_dict()
    shapes = {}
    for name, here, pattern, converters in _renamed(empty, checkpoint):
        stored = checkpoint.tensors[name].shape
        if pattern is None:
            shapes[here] = stored
            continue
        for each in _made_of(here, pattern, converters):
            shapes[each] = tuple(known[each].shape) if each in known else stored
    return shapes


def _renamed(
    empty: Any, checkpoint: Checkpoint
) -> Iterator[tuple[str, str, str | None, Sequence[Any]]]:
    """Stored names, those of the class, and the converter's pattern where there is one."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(empty)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    known = empty.state_dict()
    computed = [
        r"rotary_emb\.inv_freq$",
        r"embeddings\.position_ids$",
        *(empty._keys_to_ignore_on_load_unexpected or ()),
    ]
    for name in checkpoint.tensors:
        here, pattern = rename_source_key(
            name, renamings, converters, empty.base_model_prefix, known
        )
        if here in known or not any(re.search(each, here) for each in computed):
            yield name, here, pattern, converters


def _made_of(name: str, pattern: str, converters: Sequence[Any]) -> list[str]:
    """All weights of the class that a stored one becomes, of which `name` is the first."""
    found = next(each for each in converters if pattern in each.source_patterns)
    first, *others = found.target_patterns
    return [name, *(name.replace(first, other, 1) for other in others)]
