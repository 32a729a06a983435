"""Models whose code is only in their folders, as classes of ``transformers`` under other names.

A folder's code never runs. What it computes is what a known class computes, once the configuration
has that class's keys and the weights its names; ``tests/models/test_published.py`` compares each
with its formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """A weight of the class: rows of a stored tensor.

    `unit_rows` says that each row is divided by its length.
    """

    name: str
    rows: slice = slice(None)
    unit_rows: bool = False


def as_stored(_config: Mapping[str, Any], name: str) -> Sequence[Piece]:
    """The same name in the class."""
    return (Piece(name),)


@dataclass(frozen=True, kw_only=True)
class Published:
    """How a folder becomes a known class.

    Attributes
    ----------
    config
        The arguments of the class's configuration from ``config.json``.
    pieces
        The weights of the class that lie in a stored tensor, by its name.
    """

    config: Callable[[Mapping[str, Any]], dict[str, Any]]
    pieces: Callable[[Mapping[str, Any], str], Sequence[Piece]] = as_stored


# What these files call as LlamaConfig does.
_SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "hidden_act"),
    *("rms_norm_eps", "initializer_range", "rope_theta", "rope_scaling", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "architectures"),
)


def same_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that need no other name."""
    return {name: config[name] for name in _SAME if config.get(name) is not None}
