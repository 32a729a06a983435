"""mlc-llm's paged cache of keys and values as plain operators on a fixed number of rows.

A definition asks a paged cache for attention, and a runtime of mlc-llm's keeps the pages. Here an
object with the same calls writes out what that runtime does: rotary positions, the cache's new
rows, scores, mask and softmax. The interface is that of :mod:`tapml.models.entries`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend.nn import Tensor

from tapml.models.inputs import MASKED
from tapml_targets.errors import InputError, UnsupportedOperatorError

_KINDS: Final = ("mha", "mha_sliding")
_NO_ROTARY: Final = 0


@dataclass(frozen=True)
class CacheRequest:
    """What a definition asks of its cache.

    Attributes
    ----------
    windows
        Of each layer: how many positions a token attends to; 0 for all before it.
    heads, kv_heads, key_size, value_size
        Of every layer.
    rotary
        Elements of a head that are rotated; 0 if the definition does it itself or not at all.
    frequencies
        Angle per position of each rotated pair, float32 ``[rotary / 2]``.
    interleaved
        Whether pairs are neighbours; else they are half of `rotary` apart.
    magnitude
        Factor of cosine and sine.
    """

    windows: tuple[int, ...]
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    rotary: int
    frequencies: npt.NDArray[np.float32]
    interleaved: bool
    magnitude: float


def cache_request(module: Any, configuration: Any, cache_class: Any, context: int) -> CacheRequest:
    """Ask a definition for its cache, and note what it asks for.

    Raises
    ------
    UnsupportedOperatorError
        If it asks for something that is not written out here.
    """
    with _recorded(cache_class):
        asked = module.create_paged_kv_cache(1, context, context, 16, 0)
    kinds = asked["attn_kind"]
    layers = int(asked["num_hidden_layers"])
    of_layers = list(kinds) if isinstance(kinds, list | tuple) else [kinds] * layers
    unknown = sorted({str(kind) for kind in of_layers} - set(_KINDS))
    if unknown:
        raise UnsupportedOperatorError(
            f"mlc-llm's definition asks for attention of the kind {', '.join(unknown)}: expected "
            f"{' or '.join(_KINDS)}"
        )
    window = int(getattr(configuration, "sliding_window_size", None) or 0)
    everywhere = not isinstance(kinds, list | tuple)
    windows = tuple(
        max(window, 0) if everywhere or kind == "mha_sliding" else 0 for kind in of_layers
    )
    size = int(asked["qk_head_dim"])
    scaling = dict(asked.get("rope_scaling") or {})
    rotary = 0
    frequencies, magnitude = np.zeros(0, np.float32), 1.0
    if int(asked["rope_mode"]) != _NO_ROTARY:
        rotary = int(asked.get("rotary_dim") or size)
        factors = asked.get("rope_ext_factors")
        frequencies, magnitude = _frequencies(rotary, float(asked["rope_theta"]), scaling, factors)
        frequencies = frequencies * np.float32(asked["rope_scale"])
    return CacheRequest(
        windows=windows,
        heads=int(asked["num_attention_heads"]),
        kv_heads=int(asked["num_key_value_heads"]),
        key_size=size,
        value_size=int(asked["v_head_dim"]),
        rotary=rotary,
        frequencies=frequencies,
        interleaved=scaling.get("rope_type") == "gptj",
        magnitude=magnitude,
    )


@contextmanager
def _recorded(cache_class: Any) -> Iterator[None]:
    """Within it, the cache's constructor gives its arguments back."""
    own = vars(cache_class)["create_generic"]
    cache_class.create_generic = staticmethod(lambda **arguments: arguments)
    try:
        yield
    finally:
        cache_class.create_generic = own


def _frequencies(
    rotary: int, theta: float, scaling: Mapping[str, Any], factors: Sequence[float] | None
) -> tuple[npt.NDArray[np.float32], float]:
    """Angles per position, and the factor of cosine and sine."""
    plain = 1.0 / theta ** (np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    kind = scaling.get("rope_type", "default")
    if kind in ("default", "gptj"):
        return plain.astype(np.float32), 1.0
    if kind == "llama3":
        # Llama 3.1: long waves are stretched, short ones stay, and those between are mixed.
        low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
        turns = plain * float(scaling["original_max_position_embeddings"]) / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return ((1 - kept) * plain / float(scaling["factor"]) + kept * plain).astype(
            np.float32
        ), 1.0
    if kind == "longrope" and factors is not None:
        original = float(scaling["original_max_position_embeddings"])
        stretch = float(scaling["max_position_embeddings"]) / original
        grown = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        return (plain / np.asarray(factors, dtype=np.float64)).astype(np.float32), grown
    raise UnsupportedOperatorError(
        f"mlc-llm's definition asks for rotary positions scaled by {kind!r}: expected default, "
        "gptj, llama3 or longrope"
    )


class PlainCache:
    """The cache of one entry while a definition builds it.

    Parameters
    ----------
    request
        What the definition asked for.
    positions, rows, mask
        The entry's inputs ``position_ids``, ``cache_rows`` and ``attention_mask``.
    tensors
        Stored keys and values: key, value, key, value, ... in the order of the layers.
    dtype
        The model's.
    single
        Whether the entry takes one token.
    """

    def __init__(
        self,
        request: CacheRequest,
        positions: Any,
        rows: Any,
        mask: Any,
        tensors: Sequence[Any],
        *,
        dtype: str,
        single: bool,
    ) -> None:
        self._request = request
        self._positions = positions
        self._rows = rows
        self._mask = mask
        self._dtype = dtype
        self._single = single
        self._masks: dict[int, Any] = {0: mask}
        self._angles: tuple[Any, Any] | None = None
        self.tensors = list(tensors)

    def attention_with_fused_qkv(
        self, layer_id: int, qkv: Tensor, num_qo_heads: int, sm_scale: float
    ) -> Tensor:
        """Attention ``[1, S, heads, size]`` of packed queries, keys and values.

        `qkv` is ``[1, S, heads + 2 * KV heads, size]``.
        """
        request = self._request
        heads, kv_heads, size = request.heads, request.kv_heads, request.key_size
        if request.value_size != size or num_qo_heads != heads:
            raise UnsupportedOperatorError(
                f"mlc-llm's layer {layer_id} has {num_qo_heads} heads of {size} and values of "
                f"{request.value_size}: expected {heads} heads, and keys and values of one size"
            )
        packed = qkv._expr
        tokens = packed.ty.shape[1]
        parts = _emit(op.split(packed, [heads, heads + kv_heads], axis=2), "qkv")
        query, key, value = (_emit(relax.TupleGetItem(parts, at)) for at in range(3))
        if request.rotary:
            query, key = self._rotated(query), self._rotated(key)
        query, key, value = (
            _emit(op.permute_dims(each, [0, 2, 1, 3])) for each in (query, key, value)
        )
        keys = self._store(2 * layer_id, key, "keys")
        values = self._store(2 * layer_id + 1, value, "values")
        # The heads that share keys become rows of one product.
        group = heads // kv_heads
        context = self.tensors[0].ty.shape[2]
        queries = _emit(op.reshape(query, (kv_heads, group * tokens, size)))
        stored = _emit(op.reshape(keys, (kv_heads, context, size)))
        scores = _emit(op.matmul(queries, _emit(op.permute_dims(stored, [0, 2, 1]))), "scores")
        scores = _emit(op.reshape(scores, (1, heads, tokens, context)))
        scores = _emit(op.multiply(scores, relax.const(float(sm_scale), self._dtype)))
        scores = _emit(op.add(scores, self._mask_of(request.windows[layer_id])))
        if self._dtype != "float32":
            scores = _emit(op.astype(scores, "float32"))
        weights = _emit(op.nn.softmax(scores, axis=-1), "attention")
        if self._dtype != "float32":
            weights = _emit(op.astype(weights, self._dtype))
        weights = _emit(op.reshape(weights, (kv_heads, group * tokens, context)))
        read = _emit(op.reshape(values, (kv_heads, context, size)))
        mixed = _emit(op.matmul(weights, read))
        mixed = _emit(op.reshape(mixed, (1, heads, tokens, size)))
        return Tensor(_expr=_emit(op.permute_dims(mixed, [0, 2, 1, 3]), "attended"))

    def get_query_positions(self, total_length: Any) -> Tensor:
        """The positions of the new tokens, int32 ``[S]``."""
        return Tensor(_expr=_emit(op.reshape(self._positions, (total_length,)), "positions"))

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedOperatorError(
            f"mlc-llm's definition calls {name} of its cache, which is not written out as plain "
            "operators"
        )

    def _store(self, index: int, new: Any, hint: str) -> Any:
        """The cache with the new rows ``[1, KV heads, S, size]`` where an index names one."""
        context = self.tensors[index].ty.shape[2]
        written = _emit(op.greater_equal(self._rows, relax.const(0, "int32")))
        written = _emit(op.reshape(written, (1, 1, context, 1)))
        if not self._single:
            # Rows that stay have the index -1; what is gathered for them is dropped.
            first = _emit(op.maximum(self._rows, relax.const(0, "int32")))
            new = _emit(op.take(new, first, axis=2, mode="clip"))
        self.tensors[index] = _emit(op.where(written, new, self.tensors[index]), hint)
        return self.tensors[index]

    def _mask_of(self, window: int) -> Any:
        """The mask of a layer: a token attends to the last `window` positions, or to all."""
        if window not in self._masks:
            context = int(self.tensors[0].ty.shape[2])
            tokens = self._positions.ty.shape[1]
            places = relax.const(np.arange(context, dtype=np.int32).reshape(1, 1, 1, context))
            own = _emit(op.reshape(self._positions, (1, 1, tokens, 1)))
            near = _emit(op.less(_emit(op.subtract(own, places)), relax.const(window, "int32")))
            hidden = relax.const(MASKED[self._dtype], self._dtype)
            self._masks[window] = _emit(op.where(near, self._mask, hidden), "window")
        return self._masks[window]

    def _rotated(self, heads: Any) -> Any:
        """Heads ``[1, S, count, size]`` with their first elements turned by the positions."""
        request = self._request
        cosine, sine = self._cosine_and_sine()
        _, tokens, count, size = heads.ty.shape
        turned, rest = heads, None
        if request.rotary < int(size):
            parts = _emit(op.split(heads, [request.rotary], axis=3))
            turned, rest = (_emit(relax.TupleGetItem(parts, at)) for at in range(2))
        half = request.rotary // 2
        if request.interleaved:
            turned = _emit(op.reshape(turned, (1, tokens, count, half, 2)))
            halves = _emit(op.split(turned, 2, axis=4))
            shape = (1, tokens, count, half)
            first, second = (
                _emit(op.reshape(_emit(relax.TupleGetItem(halves, at)), shape)) for at in range(2)
            )
        else:
            halves = _emit(op.split(turned, 2, axis=3))
            first, second = (_emit(relax.TupleGetItem(halves, at)) for at in range(2))
        left = _emit(
            op.subtract(_emit(op.multiply(first, cosine)), _emit(op.multiply(second, sine)))
        )
        right = _emit(op.add(_emit(op.multiply(second, cosine)), _emit(op.multiply(first, sine))))
        if request.interleaved:
            pairs = [_emit(op.expand_dims(each, 4)) for each in (left, right)]
            joined = _emit(op.reshape(_emit(op.concat(pairs, 4)), (1, tokens, count, 2 * half)))
        else:
            joined = _emit(op.concat([left, right], 3))
        return joined if rest is None else _emit(op.concat([joined, rest], 3))

    def _cosine_and_sine(self) -> tuple[Any, Any]:
        """Of every position and pair, ``[1, S, 1, rotary / 2]`` in the model's dtype."""
        if self._angles is None:
            tokens = self._positions.ty.shape[1]
            positions = _emit(op.astype(self._positions, "float32"))
            positions = _emit(op.reshape(positions, (1, tokens, 1, 1)))
            steps = relax.const(self._request.frequencies.reshape(1, 1, 1, -1))
            angles = _emit(op.multiply(positions, steps), "angles")
            found = []
            for each in (op.cos, op.sin):
                values = _emit(each(angles))
                if self._request.magnitude != 1.0:
                    factor = relax.const(self._request.magnitude, "float32")
                    values = _emit(op.multiply(values, factor))
                if self._dtype != "float32":
                    values = _emit(op.astype(values, self._dtype))
                found.append(values)
            self._angles = (found[0], found[1])
        return self._angles


def check_cache(request: CacheRequest, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise :class:`InputError` if the definition's cache is not that of the folder's class."""
    layers = len(shapes) // 2
    asked = (len(request.windows), request.kv_heads, request.key_size)
    for shape in shapes.values():
        if (layers, shape[1], shape[3]) != asked:
            raise InputError(
                "mlc-llm's definition keeps {} layers of {} heads of {} elements, and the class "
                "of the folder {} of {} of {}".format(*asked, layers, shape[1], shape[3])
            )


def _emit(expression: Any, hint: str = "") -> Any:
    return relax.BlockBuilder.current().emit(expression, hint)
