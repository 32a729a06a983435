"""Wrong msgpack: values that no client sends, and malformed bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack

from scripts.wire_fuzz.messages import EPOCH, OTHER_TOKEN, TOKEN

_WHOLE: Final = (0, 1, 7, 8, 63, 64, 255, 65536, 1 << 20, 1 << 31, (1 << 32) + 1)
_HUGE: Final = ((1 << 63) - 1, (1 << 64) - 1, (1 << 62) + 4, -1, -(1 << 31), -(1 << 63))
_DTYPES: Final = ("float64", "int8", "bool", "float4_e2m1fn", "bfloat16", "void", "", "float32x4")
_TEXTS: Final = ("", "a" * 5000, "é\x00\u202e", "../../etc/passwd", "%s%n{0}", "0" * 64, "f" * 64)
_KNOWN_NAMES: Final = (
    "type", "session", "epoch", "sequence", "commands", "bytes", "versions",
    "download_window", "operation", "digest", "digests", "total", "offset", "kernel_deadline",
)  # fmt: skip
_MOST_ARRAY: Final = 70_000


class Raw(bytes):
    """Raw bytes in a header."""

    __slots__ = ()


class Pairs(list[tuple[Any, Any]]):
    """A map that may have duplicate keys."""

    __slots__ = ()


def encode(value: Any) -> bytes:
    """Msgpack of a value with lies in it."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        return encode(Pairs(value.items()))
    if isinstance(value, Pairs):
        count = len(value)
        head = struct.pack(">BH", 0xDE, count) if count > 15 else bytes([0x80 | count])
        return head + b"".join(encode(key) + encode(inner) for key, inner in value)
    if isinstance(value, list):
        count = len(value)
        head = struct.pack(">BI", 0xDD, count) if count > 15 else bytes([0x90 | count])
        return head + b"".join(encode(inner) for inner in value)
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def strange(rng: random.Random) -> Any:
    """An unexpected value."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(_WHOLE),
        lambda: rng.choice(_HUGE),
        lambda: rng.choice([None, True, False, 1.5, float("nan"), float("inf"), -0.0, 1e308]),
        lambda: rng.choice(_TEXTS),
        lambda: rng.choice(_DTYPES),
        lambda: rng.choice([b"", rng.randbytes(16), bytes(8), TOKEN, OTHER_TOKEN, EPOCH]),
        lambda: [strange(rng) for _ in range(rng.randint(0, 4))],
        lambda: {rng.choice(_TEXTS): strange(rng) for _ in range(rng.randint(0, 3))},
        lambda: Raw(no_value(rng)),
    )
    return rng.choice(makers)()


def no_value(rng: random.Random) -> bytes:
    """Malformed bytes instead of a value."""
    kind = rng.randrange(8)
    if kind == 0:
        depth = rng.choice([3, 100, 600, 2000, 20_000])
        return b"\x91" * depth + b"\xc0"
    if kind == 1:
        return b"\x81\xa1a" * rng.choice([3, 600, 2000]) + b"\xc0"
    if kind == 2:
        return struct.pack(">BI", rng.choice([0xDD, 0xDF, 0xC6, 0xDB, 0xC9]), rng.choice(_CLAIMS))
    if kind == 3:
        # Extension types: a timestamp, an unknown one, an empty one.
        return rng.choice([b"\xd6\xff\0\0\0\0", b"\xd4\x05a", b"\xc7\x00\x01", b"\xc7\x04\x7fabcd"])
    if kind == 4:
        return b"\xc1"
    if kind == 5:
        return rng.choice([b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\xa1\x80"])
    if kind == 6:
        count = rng.choice([5000, _MOST_ARRAY])
        return struct.pack(">BI", 0xDD, count) + b"\xc0" * count
    return rng.randbytes(rng.randint(0, 12))


_CLAIMS: Final = (0xFFFFFFFF, 0x7FFFFFFF, 1 << 20, 65537)


def keys(rng: random.Random) -> str:
    """A key that some message has."""
    return rng.choice(_KNOWN_NAMES)
