"""Arguments and results as flat fields, and digests of whole tensors.

A tensor becomes its dtype and shape; a number, flag or short text becomes itself; anything else
its type. No addresses and no tensor contents get into fields.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from tapml.invariants.record import PARTS, Value
from tapml.invariants.versions import PLAIN

_TEXT: Final = 80
_ITEMS: Final = 4
_DIGEST_BYTES: Final = 8


def digest(tensor: torch.Tensor) -> str:
    """A digest of all bytes of a tensor with its dtype and shape, in hexadecimal.

    Equal digests mean equal bits: 1e-9 differs from 0, NaN from infinity, and a change in any row
    is seen. Of a distributed tensor it covers this rank's part; empty for tensors without data.
    """
    plain = tensor.detach()
    local = getattr(plain, "to_local", None)
    if local is not None:
        plain = local()
    if not _has_values(plain) or plain.is_quantized:
        return ""
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    state.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
    flat = plain.cpu().contiguous()
    state.update(_memory_of(flat))
    return state.hexdigest()


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether it has a storage with its values; that of a part that ranks share may be empty."""
    plain = tensor.layout == torch.strided and not tensor.is_meta and not is_transformed(tensor)
    return plain and (not tensor.numel() or bool(tensor.untyped_storage().nbytes()))


def _memory_of(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a contiguous tensor in the memory of the processor, as long as it lies there.

    After ``Tensor.numpy`` the run could not resize the storage any more.
    """
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def bits_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's storage as integers, whose sum changes when the tensor does, and is fast.

    The sum does not see the order of elements, which training never changes alone. None for
    tensors that cannot be looked at in this way: they have a :func:`digest`.
    """
    plain = tensor.detach()
    whole = _has_values(plain) and plain.is_contiguous() and plain.numel()
    if not whole or plain.is_conj() or plain.is_neg() or hasattr(plain, "to_local"):
        return None
    begin = plain.storage_offset() * plain.itemsize
    widest = next(
        kind for kind in _INTEGERS if not (plain.nbytes % kind.itemsize or begin % kind.itemsize)
    )
    return plain.view(-1).view(widest)


def is_finite_number(value: Any) -> bool | None:
    """Whether a tensor of one number is finite; None for anything else, or without a value."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        return None
    if value.is_meta or is_transformed(value):
        return None
    return bool(torch.isfinite(value.detach()))


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether it stands for many tensors, or a tangent, of a transform such as ``vmap``."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)


def digest_of_all(value: Any) -> str:
    """One digest of all tensors in a value, at any depth; empty if it holds none."""
    found = [text for tensor in tensors_in(value) if (text := digest(tensor))]
    if len(found) < 2:
        return "".join(found)
    return hashlib.blake2b("".join(found).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def digests_of(value: Any) -> list[str]:
    """A digest of each tensor in a value, at any depth."""
    return list(map(digest, tensors_in(value)))


def parts_of(value: Any) -> list[str]:
    """A digest of each tensor with samples: more than a few numbers a row, with fractions.

    Empty for others: labels repeat by chance, also those that are floats.
    """
    found = []
    for tensor in tensors_in(value):
        plain = tensor.layout == torch.strided and not is_transformed(tensor) and tensor.ndim > 1
        many = plain and tensor.numel() > _FEW * len(tensor)
        found.append(digest(tensor) if many and has_fractions(tensor) else "")
    return found


def has_fractions(tensor: torch.Tensor) -> bool:
    """Whether it has several numbers that are not all equal, and some with a fraction."""
    plain = tensor.layout == torch.strided and not tensor.is_meta and not is_transformed(tensor)
    if not plain or not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    values = tensor.detach().float()
    fractions = bool((values != values.round()).any())
    return fractions and bool((values != values.reshape(-1)[0]).any())


_FEW: Final = 4


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def summarise(prefix: str, value: Any, fields: dict[str, Value], depth: int = 0) -> None:
    """Add the fields of a value, each below `prefix`."""
    if value is None or isinstance(value, bool | int | float):
        # Type, not isinstance: a SymInt is no int that can be written.
        fields[prefix] = value if type(value) in _PLAIN else str(type(value).__name__)
    elif isinstance(value, torch.Tensor):
        fields[f"{prefix}.dtype"] = dtype_name(value.dtype)
        fields[f"{prefix}.shape"] = list(value.shape)
    elif isinstance(value, str):
        fields[prefix] = value[:_TEXT]
    elif isinstance(value, torch.dtype):
        fields[prefix] = dtype_name(value)
    elif isinstance(value, Mapping) and depth < 2:
        for key in list(value)[:_ITEMS]:
            if isinstance(key, str):
                summarise(f"{prefix}.{key}", value[key], fields, depth + 1)
        fields[f"{prefix}.length"] = len(value)
    elif isinstance(value, Sequence) and depth < 2:
        if len(value) and all(type(each) is int for each in value):
            fields[prefix] = list(value[:_ITEMS])
        else:
            for place, each in enumerate(value[:_ITEMS]):
                summarise(f"{prefix}.{place}", each, fields, depth + 1)
        fields[f"{prefix}.length"] = len(value)
    else:
        fields[f"{prefix}.type"] = type(value).__qualname__


_PLAIN: Final = (type(None), bool, int, float)


def summarise_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Value]:
    """The fields of a call's arguments: ``arg.0`` by place and ``arg.name`` by name."""
    fields: dict[str, Value] = {}
    for place, value in enumerate(args):
        summarise(f"arg.{place}", value, fields)
    for name, value in kwargs.items():
        summarise(f"arg.{name}", value, fields)
    return fields


def summarise_result(result: Any) -> dict[str, Value]:
    """The fields of a call's result."""
    fields: dict[str, Value] = {}
    summarise("result", result, fields)
    return fields


def summarise_batch(batch: Any) -> dict[str, Value]:
    """As :func:`summarise_result`, with digests of its tensors whose numbers have a fraction."""
    return {**summarise_result(batch), "result.digest": parts_of(batch)}


def summarise_module(
    training: bool, parts: tuple[str, ...] | None, args: Sequence[Any]
) -> dict[str, Value]:
    """The fields of a module's call: its mode, the APIs of its parts, arguments by place."""
    fields: dict[str, Value] = {"module.training": training}
    if parts is not None:
        fields[PARTS] = list(parts)
    return fields | summarise_call(args, {})


class Shared:
    """Summaries of a watched run: equal calls share one object, which nobody changes.

    Training loops call the same functions with the same shapes, step after step.
    """

    def __init__(self) -> None:
        self._calls: dict[Any, dict[str, Value]] = {}
        self._modules: dict[Any, dict[str, Value]] = {}
        self._results: dict[Any, dict[str, Value]] = {}

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Value]:
        """As :func:`summarise_call`."""
        key = (*_keys(args), "", *kwargs, *_keys(kwargs.values())) if kwargs else (*_keys(args),)
        found = self._calls.get(key)
        if found is None:
            found = summarise_call(args, kwargs)
            self._keep(self._calls, key, found)
        return found

    def module(
        self, training: bool, parts: tuple[str, ...] | None, args: Sequence[Any]
    ) -> dict[str, Value]:
        """As :func:`summarise_module`."""
        key = (parts, training, *_keys(args))
        found = self._modules.get(key)
        if found is None:
            found = summarise_module(training, parts, args)
            self._keep(self._modules, key, found)
        return found

    def result(self, result: Any) -> dict[str, Value]:
        """As :func:`summarise_result`."""
        key = (result.dtype, result.shape) if type(result) in PLAIN else _key(result)
        found = self._results.get(key)
        if found is None:
            found = summarise_result(result)
            self._keep(self._results, key, found)
        return found

    def _keep(self, known: dict[Any, dict[str, Value]], key: Any, fields: dict[str, Value]) -> None:
        if len(known) >= _KNOWN:
            known.clear()
        known[key] = fields


_KNOWN: Final = 2048
_VALUES: Final = frozenset((*_PLAIN, str, torch.dtype, torch.Size))


def _keys(values: Iterable[Any]) -> list[Any]:
    """What the summary of each value depends on; hashable."""
    return [
        (each.dtype, each.shape)
        if type(each) in PLAIN
        # 1, 1.0 and True are one key, and three summaries.
        else (type(each), each)
        if type(each) in _VALUES
        else _key(each)
        for each in values
    ]


def _key(value: Any) -> Any:
    """As :func:`_keys`, of one value, which is no plain tensor."""
    kind = type(value)
    if kind in _VALUES:
        return kind, value
    listed = kind is tuple or kind is list
    if listed and len(value) <= _ITEMS and _VALUES.issuperset(map(type, value)):
        return kind, *value, *map(type, value)
    if not listed and isinstance(value, Mapping):
        return kind, *value, *_keys(value.values())
    if listed or isinstance(value, Sequence):
        many = len(value) > _ITEMS
        whole = many and all(type(each) is int for each in value)
        return kind, len(value), whole, *_keys(value[:_ITEMS] if many else value)
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    return kind


def tensors_in(value: Any, depth: int = 0) -> list[torch.Tensor]:
    """The tensors in a value, at any depth up to three."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth < 3 and isinstance(value, Mapping):
        return [each for key in value for each in tensors_in(value[key], depth + 1)]
    if depth < 3 and isinstance(value, list | tuple):
        return [each for item in value for each in tensors_in(item, depth + 1)]
    return []
