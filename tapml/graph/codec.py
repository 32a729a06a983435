"""Building blocks of a checked wire form: dataclasses as lists of fields, nothing implied.

A codec turns a value into what msgpack carries and back; on the way back every type and length is
checked, because a plan may come from someone else's disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from tapml_targets.errors import ProtocolError
from tapml_targets.expression import Expression, from_wire

_BOUND: Final = 1 << 63


@dataclass(frozen=True)
class Codec:
    """How one type is written and read back; ``decode`` raises :class:`ProtocolError`."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise ProtocolError(f"plan: expected text, got {type(data).__name__}")
    return data


def _integer(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or not -_BOUND <= data < _BOUND:
        raise ProtocolError(f"plan: expected a 64-bit integer, got {str(data)[:40]}")
    return data


def _number(data: Any) -> float:
    if not isinstance(data, float):
        raise ProtocolError(f"plan: expected a number, got {type(data).__name__}")
    return data


def _expression(data: Any) -> Expression:
    found = from_wire(data)
    return _integer(found) if isinstance(found, int) else found


def _items(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ProtocolError(f"plan: expected a list, got {type(data).__name__}")
    return data


text: Final = Codec(lambda value: value, _text)
integer: Final = Codec(lambda value: value, _integer)
number: Final = Codec(float, _number)
expression: Final = Codec(lambda value: value, _expression)


def optional(inner: Codec) -> Codec:
    """None or what `inner` takes."""
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda data: None if data is None else inner.decode(data),
    )


def choice(*names: str) -> Codec:
    """One of a few names."""

    def decode(data: Any) -> str:
        if data not in names:
            raise ProtocolError(f"plan: expected one of {', '.join(names)}, got {str(data)[:40]}")
        return _text(data)

    return Codec(lambda value: value, decode)


def many(inner: Codec) -> Codec:
    """A tuple of any length."""
    return Codec(
        lambda value: [inner.encode(item) for item in value],
        lambda data: tuple(inner.decode(item) for item in _items(data)),
    )


def pair(first: Codec, second: Codec) -> Codec:
    """A tuple of two."""

    def decode(data: Any) -> tuple[Any, Any]:
        if len(_items(data)) != 2:
            raise ProtocolError(f"plan: expected a pair, got {len(data)} items")
        return first.decode(data[0]), second.decode(data[1])

    return Codec(lambda value: [first.encode(value[0]), second.encode(value[1])], decode)


def mapping(inner: Codec) -> Codec:
    """A dictionary from names, in its own order."""
    items = many(pair(text, inner))

    def decode(data: Any) -> dict[str, Any]:
        found = items.decode(data)
        if len(dict(found)) != len(found):
            raise ProtocolError("plan: a name is there twice")
        return dict(found)

    return Codec(lambda value: items.encode(tuple(value.items())), decode)


def named(inner: Codec) -> Codec:
    """A dictionary of things that know their own name, in its own order."""
    items = many(inner)

    def decode(data: Any) -> dict[str, Any]:
        found = {item.name: item for item in items.decode(data)}
        if len(found) != len(data):
            raise ProtocolError("plan: a name is there twice")
        return found

    return Codec(lambda value: items.encode(tuple(value.values())), decode)


def record(kind: Callable[..., Any], *codecs: Codec) -> Codec:
    """A dataclass, with a codec for each of its fields in their order."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    if len(names) != len(codecs):
        raise TypeError(f"{kind} has {len(names)} fields, got {len(codecs)} codecs")

    def encode(value: Any) -> list[Any]:
        return [
            codec.encode(getattr(value, name)) for name, codec in zip(names, codecs, strict=True)
        ]

    def decode(data: Any) -> Any:
        if len(_items(data)) != len(codecs):
            raise ProtocolError(
                f"plan: expected {len(codecs)} fields of a {kind.__name__}, got {len(data)}"
            )
        return kind(*(codec.decode(item) for codec, item in zip(codecs, data, strict=True)))

    return Codec(encode, decode)


def one_of(**codecs: tuple[type, Codec]) -> Codec:
    """One of several dataclasses, told apart by a tag in front."""

    def encode(value: Any) -> list[Any]:
        for tag, (kind, codec) in codecs.items():
            if isinstance(value, kind):
                return [tag, codec.encode(value)]
        raise TypeError(f"no codec for {type(value).__name__}")

    def decode(data: Any) -> Any:
        if len(_items(data)) != 2 or data[0] not in codecs:
            raise ProtocolError(f"plan: expected one of {', '.join(codecs)}")
        return codecs[data[0]][1].decode(data[1])

    return Codec(encode, decode)
