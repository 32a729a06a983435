"""The kernels of a sort: a stable merge sort of places in a row.

Keys are the elements' bits, rearranged so that they compare as unsigned integers: the order is
total and the same everywhere. Both zeros are equal, and NaN is larger than any number.
"""

from __future__ import annotations

from typing import Any, Final

from tvm import tirx
from tvm.script import tirx as T

from tapml_targets.codegen.handwritten import WrittenKernel

# What holds an element's bits, and by how much they are shifted to fill a word.
STORED: Final = {"float32": "uint32", "float16": "uint16", "int32": "uint32", "uint32": "uint32"}
_SHIFTED: Final = {"float16": 16}
_INFINITY: Final = {"float32": 0x7F800000, "float16": 0x7C000000}
_SIGN: Final = 1 << 31
_LARGEST: Final = (1 << 32) - 1


def _word(value: int) -> Any:
    return tirx.IntImm("uint32", value)


def _key(element: Any, dtype: str, *, ascending: bool) -> Any:
    """The key of an element's bits."""
    bits = tirx.Cast("uint32", element) if dtype in _SHIFTED else element
    if dtype in _SHIFTED:
        bits = tirx.shift_left(bits, _word(_SHIFTED[dtype]))
    key = bits
    if dtype == "int32":
        key = tirx.bitwise_xor(bits, _word(_SIGN))
    elif dtype in _INFINITY:
        size = tirx.bitwise_and(bits, _word(_SIGN - 1))
        negative = bits >= _word(_SIGN)
        key = tirx.Select(
            negative, tirx.bitwise_xor(bits, _word(_LARGEST)), tirx.bitwise_xor(bits, _word(_SIGN))
        )
        key = tirx.Select(size == _word(0), _word(_SIGN), key)
        key = tirx.Select(size > _word(_INFINITY[dtype]), _word(_LARGEST), key)
    return key if ascending else tirx.bitwise_xor(key, _word(_LARGEST))


def _source(row: Any, place: Any, length: Any, inner: Any) -> Any:
    """Where an element of a row lies, of which each is `inner` elements from the next."""
    outer = tirx.truncdiv(row, inner)
    return outer * length * inner + place * inner + tirx.truncmod(row, inner)


def sort_runs(dtype: str, threads: int, *, ascending: bool) -> WrittenKernel:
    """Sort each run of `threads` elements, counting for every element those before it."""
    stored = STORED[dtype]

    @T.prim_func  # type: ignore[untyped-decorator]
    def function(
        given_data: T.handle,
        order_data: T.handle,
        length: T.int32,
        inner: T.int32,
        runs: T.int32,
        blocks: T.int32,
    ) -> None:
        given_size = T.int32()
        order_size = T.int32()
        given = T.match_buffer(given_data, (given_size,), stored)
        order = T.match_buffer(order_data, (order_size,), "int32")
        for number in T.thread_binding(blocks, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                keys = T.alloc_shared((threads,), "uint32")
                key = T.alloc_local((1,), "uint32")
                found = T.alloc_local((1,), "uint32")
                rank = T.alloc_local((1,), "int32")
                row: T.let[T.int32] = T.truncdiv(number, runs)
                start: T.let[T.int32] = T.truncmod(number, runs) * threads
                key[0] = _word(0)
                if start + thread < length:
                    key[0] = _key(
                        given[_source(row, start + thread, length, inner)],
                        dtype,
                        ascending=ascending,
                    )
                keys[thread] = key[0]
                T.tvm_storage_sync("shared")
                if start + thread < length:
                    rank[0] = 0
                    for other in T.serial(T.min(threads, length - start)):
                        found[0] = keys[other]
                        # Equal keys stay in the order they came in.
                        if found[0] < key[0] or (found[0] == key[0] and other < thread):
                            rank[0] = rank[0] + 1
                    order[row * length + start + rank[0]] = start + thread

    return WrittenKernel(
        function, {"given": stored, "order": "int32"}, ("length", "inner", "runs", "blocks")
    )


def merge_runs(dtype: str, threads: int, *, ascending: bool) -> WrittenKernel:
    """Merge neighbouring runs of `width` elements.

    Every element finds out by bisection, in `steps`, how many of the other run come before it. Of
    equal keys those of the left run come first.
    """
    stored = STORED[dtype]

    @T.prim_func  # type: ignore[untyped-decorator]
    def function(  # noqa: PLR0917
        given_data: T.handle,
        order_data: T.handle,
        merged_data: T.handle,
        length: T.int32,
        inner: T.int32,
        rows: T.int32,
        width: T.int32,
        steps: T.int32,
        blocks: T.int32,
    ) -> None:
        given_size = T.int32()
        order_size = T.int32()
        merged_size = T.int32()
        given = T.match_buffer(given_data, (given_size,), stored)
        order = T.match_buffer(order_data, (order_size,), "int32")
        merged = T.match_buffer(merged_data, (merged_size,), "int32")
        for number in T.thread_binding(blocks, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                mine = T.alloc_local((1,), "int32")
                key = T.alloc_local((1,), "uint32")
                found = T.alloc_local((1,), "uint32")
                low = T.alloc_local((1,), "int32")
                high = T.alloc_local((1,), "int32")
                middle = T.alloc_local((1,), "int32")
                element: T.let[T.int32] = number * threads + thread
                if element < rows * length:
                    row: T.let[T.int32] = T.truncdiv(element, length)
                    place: T.let[T.int32] = T.truncmod(element, length)
                    start: T.let[T.int32] = place - T.truncmod(place, 2 * width)
                    second: T.let[T.int32] = T.min(start + width, length)
                    end: T.let[T.int32] = T.min(start + 2 * width, length)
                    mine[0] = order[element]
                    key[0] = _key(
                        given[_source(row, mine[0], length, inner)], dtype, ascending=ascending
                    )
                    low[0] = T.Select(place < second, second, start)
                    high[0] = T.Select(place < second, end, second)
                    for _step in T.serial(steps):
                        if low[0] < high[0]:
                            middle[0] = low[0] + T.truncdiv(high[0] - low[0], 2)
                            found[0] = _key(
                                given[_source(row, order[row * length + middle[0]], length, inner)],
                                dtype,
                                ascending=ascending,
                            )
                            if found[0] < key[0] or (found[0] == key[0] and place >= second):
                                low[0] = middle[0] + 1
                            else:
                                high[0] = middle[0]
                    # Its place in its own run, and how many of the other come before it.
                    merged[
                        row * length
                        + T.Select(place < second, place + low[0] - second, place - second + low[0])
                    ] = mine[0]

    return WrittenKernel(
        function,
        {"given": stored, "order": "int32", "merged": "int32"},
        ("length", "inner", "rows", "width", "steps", "blocks"),
    )


def write_sorted(dtype: str, written: str, threads: int, *, values: bool) -> WrittenKernel:
    """Write the first `kept` of each sorted row: their values, or their places as `written`."""
    stored = STORED[dtype]
    made = stored if values else written

    @T.prim_func  # type: ignore[untyped-decorator]
    def function(  # noqa: PLR0917
        given_data: T.handle,
        order_data: T.handle,
        written_data: T.handle,
        length: T.int32,
        inner: T.int32,
        rows: T.int32,
        kept: T.int32,
        blocks: T.int32,
    ) -> None:
        given_size = T.int32()
        order_size = T.int32()
        written_size = T.int32()
        given = T.match_buffer(given_data, (given_size,), stored)
        order = T.match_buffer(order_data, (order_size,), "int32")
        result = T.match_buffer(written_data, (written_size,), made)
        for number in T.thread_binding(blocks, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                place = T.alloc_local((1,), "int32")
                element: T.let[T.int32] = number * threads + thread
                if element < rows * kept:
                    row: T.let[T.int32] = T.truncdiv(element, kept)
                    rank: T.let[T.int32] = T.truncmod(element, kept)
                    if rank < length:
                        place[0] = order[row * length + rank]
                        result[_source(row, rank, kept, inner)] = (
                            given[_source(row, place[0], length, inner)]
                            if values
                            else T.Cast(made, place[0])
                        )

    return WrittenKernel(
        function,
        {"given": stored, "order": "int32", "written": made},
        ("length", "inner", "rows", "kept", "blocks"),
    )
