"""How torch sub-graphs are written inside a plan: lists and tags, every field checked when read."""

from __future__ import annotations

from typing import Any, Final

from tapml.graph.codec import Codec, expression, integer, many, optional, pair, record, text
from tapml.graph.torch_subgraph import (
    Argument,
    DataType,
    Extent,
    Reference,
    Text,
    TorchForm,
    TorchInput,
    TorchNode,
    TorchSubgraph,
)
from tapml_targets.errors import ProtocolError

_DEPTH: Final = 4


def _encode(argument: Argument) -> list[Any]:
    if argument is None:
        return ["none"]
    if isinstance(argument, bool):
        return ["flag", argument]
    if isinstance(argument, float):
        return ["number", argument]
    if isinstance(argument, tuple):
        return ["list", *(_encode(each) for each in argument)]
    for tag, (kind, codec) in _TAGS.items():
        if isinstance(argument, kind):
            return [tag, codec.encode(argument)]
    raise TypeError(f"no argument of a torch operation: {type(argument).__name__}")


def _decode(data: Any, depth: int = 0) -> Argument:
    if not isinstance(data, list) or not data or depth > _DEPTH:
        raise ProtocolError("plan: expected an argument of a torch operation")
    tag, *rest = data
    if tag == "list":
        return tuple(_decode(each, depth + 1) for each in rest)
    if tag == "none" and not rest:
        return None
    if len(rest) == 1:
        (value,) = rest
        if tag == "flag" and isinstance(value, bool):
            return value
        if tag == "number" and isinstance(value, float):
            return value
        if isinstance(tag, str) and tag in _TAGS:
            decoded: Argument = _TAGS[tag][1].decode(value)
            return decoded
    raise ProtocolError(f"plan: no argument of a torch operation: {str(tag)[:40]}")


_argument = Codec(_encode, _decode)
_reference = record(Reference, text, optional(integer))
_TAGS: Final[dict[str, tuple[type, Codec]]] = {
    "value": (Reference, _reference),
    "extent": (Extent, record(Extent, expression)),
    "dtype": (DataType, record(DataType, text)),
    "text": (Text, record(Text, text)),
}
_input = record(TorchInput, text, text, many(expression), many(expression))
_node = record(TorchNode, text, text, many(_argument), many(pair(text, _argument)))
_subgraph = record(TorchSubgraph, many(_input), many(_node), many(_reference))

torch_form: Final = record(TorchForm, many(text), optional(_subgraph), text)
"""Codec of a :class:`~tapml.graph.torch_subgraph.TorchForm`."""
