"""Turns a valid conversation into an invalid one: in values, fields, frames and order."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from scripts.wire_fuzz.conversations import HELLO, Conversation
from scripts.wire_fuzz.lies import Pairs, encode, keys, no_value, strange
from scripts.wire_fuzz.messages import EPOCH, OTHER_TOKEN, TOKEN, Message, Shot, sequence

_OVERSIZE: Final = (4 << 20) + 1
_BIG_HEADER: Final = (1 << 20) + 1
_MOST_STEPS: Final = 3
# Sequence numbers increase between conversations, which may share a session.
_NUMBERED, _MOST_BATCHES = 512, 1024
_OFFSETS: Final = (-1, 1, 2, 4, 8, 1 << 20, 1 << 40, 1 << 62)


def shots(seed: int, index: int, *, blobs: bool) -> list[Shot]:
    """The frames of conversation `index`: the same for the same seed, on every machine."""
    rng = random.Random(f"{seed}:{index}")  # noqa: S311 - repeatable, no secret
    messages = Conversation(rng, blobs=blobs, sequence=index % _NUMBERED * _MOST_BATCHES).build()
    order = ""
    if rng.random() < 0.2:
        messages, order = _reorder(rng, messages)
    # A conversation that is wrong everywhere is refused at once, so most messages stay valid.
    share = rng.choice([0.2, 0.5, 0.9])
    return [
        _wrong(rng, message, order) if rng.random() < share else _right(message, order)
        for message in messages
    ]


def _right(message: Message, what: str, name: str = "") -> Shot:
    frames = [encode(message.header)]
    if message.chunk is not None:
        frames.append(message.chunk)
    return Shot(message.socket, tuple(frames), f"{name or message.name}: {what or 'valid'}")


def _wrong(rng: random.Random, message: Message, order: str) -> Shot:
    level = rng.random()
    if level < 0.55:
        header, what = _wrong_header(rng, message.header)
        return _right(Message(message.socket, header, message.chunk), what, message.name)
    if level < 0.75:
        return _wrong_bytes(rng, message)
    return _wrong_frames(rng, message)


def _wrong_header(rng: random.Random, header: dict[str, Any]) -> tuple[dict[str, Any], str]:
    wrong: Any = copy.deepcopy(header)
    what = ""
    for _ in range(rng.randint(1, _MOST_STEPS)):
        what = rng.choice(_HEADER_STEPS)(rng, wrong) or what
    return wrong, what or "valid"


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every place in a header: the container and the key or index there."""
    items: Iterable[tuple[Any, Any]] = ()
    if type(value) is dict:
        items = value.items()
    elif type(value) is list:
        items = enumerate(value)
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def _other_value(rng: random.Random, header: dict[str, Any]) -> str:
    container, key = rng.choice(_places(header, [(header, "type")]))
    container[key] = strange(rng)
    return "another value"


def _near_value(rng: random.Random, header: dict[str, Any]) -> str:
    """An integer a little or far beside what it was: bounds, handles, sizes."""
    numbers = [
        (container, key)
        for container, key in _places(header, [])
        if type(container[key]) is int and abs(container[key]) < 1 << 62
    ]
    if not numbers:
        return ""
    container, key = rng.choice(numbers)
    container[key] = max(-(1 << 63), min((1 << 64) - 1, container[key] + rng.choice(_OFFSETS)))
    return "near a bound"


def _missing_field(rng: random.Random, header: dict[str, Any]) -> str:
    container, key = rng.choice(_places(header, [(header, "type")]))
    if type(container) is list or key in container:
        del container[key]
    return "a field missing"


def _more_fields(rng: random.Random, header: dict[str, Any]) -> str:
    containers = [c[k] for c, k in _places(header, []) if type(c[k]) in (list, dict)]
    container = rng.choice([header, *containers])
    if type(container) is dict:
        container[keys(rng)] = strange(rng)
    else:
        again = copy.deepcopy(rng.choice(container)) if container and rng.random() < 0.5 else None
        container.insert(rng.randint(0, len(container)), again or strange(rng))
    return "a field too many"


def _other_identity(rng: random.Random, header: dict[str, Any]) -> str:
    key = rng.choice(["session", "epoch"])
    choices = [OTHER_TOKEN, rng.randbytes(16), EPOCH, TOKEN, b"", TOKEN + b"\0", None, "text"]
    header[key] = rng.choice(choices)
    return f"another {key}"


def _other_sequence(rng: random.Random, header: dict[str, Any]) -> str:
    if "sequence" not in header:
        return ""
    header["sequence"] = rng.choice(
        [sequence(0), sequence(5), sequence(1000), -1, 0, _last(rng), 1 << 63, "1", None, 1.0]
    )
    return "another sequence"


def _last(rng: random.Random) -> int:
    """Rarely the largest number, after which the session is useless."""
    return (1 << 63) - 1 if rng.random() < 0.05 else sequence(500)


def _lying_tensor(rng: random.Random, header: dict[str, Any]) -> str:
    tensors = [
        container[key]
        for container, key in _places(header, [])
        if type(container[key]) is list and len(container[key]) == 4
        and type(container[key][2]) is list
    ]  # fmt: skip
    if not tensors:
        return ""
    tensor = rng.choice(tensors)
    shape: list[Any] = rng.choice(
        [[], [0], [-1], [1 << 62, 1 << 62], [1] * 33, [tensor[2]], [True], [1.0], [1 << 63], [17]]
    )
    tensor[rng.choice([1, 2, 2, 3])] = rng.choice([shape, rng.choice([1, 2, 1 << 40, "float16"])])
    return "a lying tensor"


_Step = Callable[[random.Random, dict[str, Any]], str]
_HEADER_STEPS: Final[tuple[_Step, ...]] = (
    _other_value,
    _other_value,
    _near_value,
    _near_value,
    _missing_field,
    _more_fields,
    _other_identity,
    _other_sequence,
    _lying_tensor,
    _lying_tensor,
)


def _wrong_bytes(rng: random.Random, message: Message) -> Shot:
    data = bytearray(encode(message.header))
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        what = "flipped bits"
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
        what = "cut short"
    elif kind == 2:
        data += rng.randbytes(rng.randint(1, 20))
        what = "bytes behind it"
    elif kind == 3:
        position = rng.randrange(len(data))
        data[position:position] = no_value(rng)
        what = "no value inside"
    elif kind == 4:
        data = bytearray(no_value(rng))
        what = "no map"
    elif kind == 5:
        pairs = Pairs([*message.header.items(), (rng.choice([*message.header]), strange(rng))])
        rng.shuffle(pairs)
        data = bytearray(encode(pairs))
        what = "a key twice"
    else:
        data = bytearray(rng.randbytes(rng.choice([0, 1, 8, 100, 3000])))
        what = "random bytes"
    frames = (bytes(data),) if message.chunk is None else (bytes(data), message.chunk)
    return Shot(message.socket, frames, f"{message.name}: {what}")


def _wrong_frames(rng: random.Random, message: Message) -> Shot:
    header = encode(message.header)
    chunk = message.chunk or b""
    choice = rng.random()
    socket = message.socket
    frames: tuple[bytes, ...]
    if choice < 0.003:
        frames, what = (header, bytes(_OVERSIZE)), "an oversized chunk"
    elif choice < 0.01:
        frames, what = (b"\xc6" + bytes(_BIG_HEADER),), "an oversized header"
    elif choice < 0.2:
        frames, what = (header,), "its chunk missing"
    elif choice < 0.4:
        frames, what = (header, rng.randbytes(rng.choice([0, 1, 9, 65536]))), "another chunk"
    elif choice < 0.55:
        frames, what = (header, chunk, *[b"more"] * rng.randint(1, 5)), "more frames"
    elif choice < 0.7:
        frames, what = (chunk, header), "its frames exchanged"
    elif choice < 0.8:
        frames, what = ((b"",) * rng.randint(1, 3)), "empty frames"
    else:
        socket = "data" if socket == "control" else "control"
        frames, what = (header, chunk) if chunk else (header,), "on the other socket"
    return Shot(socket, frames, f"{message.name}: {what}")


def _reorder(rng: random.Random, messages: list[Message]) -> tuple[list[Message], str]:
    messages = list(messages)
    # Messages that end or begin a session are rare: each costs the server a process.
    kind = rng.randrange(5) if rng.random() < 0.97 else rng.randrange(5, 7)
    if kind == 0:
        rng.shuffle(messages)
        return messages, "shuffled"
    if kind == 1:
        again = rng.choice(messages)
        messages.insert(rng.randint(0, len(messages)), again)
        return messages, "said twice"
    if kind == 2:
        del messages[rng.randrange(len(messages))]
        return messages, "one left out"
    if kind == 5:
        goodbye: dict[str, object] = {"type": "goodbye", "session": TOKEN, "epoch": EPOCH}
        at = rng.randint(0, len(messages))
        messages[at:at] = [Message("data", goodbye), Message("control", goodbye)]
        return messages, "goodbye in the middle"
    if kind == 4:
        nbytes = rng.choice([0, 1, 4096, (1 << 63) - 1])
        credit = {"type": "credit", "session": TOKEN, "epoch": EPOCH, "bytes": nbytes}
        return messages + [Message("data", credit)] * 30, "a flood of credit"
    if kind == 3:
        cancel = {"type": "cancel", "session": TOKEN, "sequence": sequence(rng.randint(0, 8))}
        return [Message("control", cancel)] * 20 + messages, "a flood of cancels"
    return [Message("control", dict(HELLO))] * rng.choice([1, 1, 3, 40]) + messages, "hellos"
