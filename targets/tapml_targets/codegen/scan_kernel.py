"""The kernel of a running sum or product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tvm import tirx
from tvm.script import tirx as T

from tapml_targets.codegen.handwritten import WrittenKernel

# Halves are added up in float32. Integers of 64 bits are pairs where a device has none.
TOTALS: Final = {
    "float32": "float32",
    "float16": "float32",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "float64": "float64",
}
WIDE: Final = "float64"


def scan_rows(
    dtype: str,
    threads: int,
    combine: Callable[[Any, Any], Any],
    identity: int,
    *,
    exclusive: bool,
) -> WrittenKernel:
    """Scan each row, a workgroup to a row.

    Each thread combines its part of the row; with what the threads before it found, it goes through
    its part again and writes.
    """
    total = TOTALS[dtype]
    nothing = tirx.const(identity, total)
    levels = (threads - 1).bit_length()

    @T.prim_func  # type: ignore[untyped-decorator]
    def function(
        given_data: T.handle,
        scanned_data: T.handle,
        length: T.int32,
        inner: T.int32,
        rows: T.int32,
    ) -> None:
        given_size = T.int32()
        scanned_size = T.int32()
        given = T.match_buffer(given_data, (given_size,), dtype)
        scanned = T.match_buffer(scanned_data, (scanned_size,), dtype)
        for row in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                totals = T.alloc_shared((threads,), total)
                running = T.alloc_local((1,), total)
                following = T.alloc_local((1,), total)
                outer: T.let[T.int32] = T.truncdiv(row, inner)
                base: T.let[T.int32] = outer * length * inner + T.truncmod(row, inner)
                part: T.let[T.int32] = T.truncdiv(length + (threads - 1), threads)
                start: T.let[T.int32] = T.min(thread * part, length)
                count: T.let[T.int32] = T.min(part, length - start)
                running[0] = nothing
                for place in T.serial(count):
                    running[0] = combine(
                        running[0], T.Cast(total, given[base + (start + place) * inner])
                    )
                totals[thread] = running[0]
                T.tvm_storage_sync("shared")
                for level in T.unroll(levels):
                    running[0] = nothing
                    if thread >= T.shift_left(1, level):
                        running[0] = totals[thread - T.shift_left(1, level)]
                    # Nobody writes what a neighbour still reads.
                    T.tvm_storage_sync("shared")
                    totals[thread] = combine(running[0], totals[thread])
                    T.tvm_storage_sync("shared")
                running[0] = nothing
                if thread > 0:
                    running[0] = totals[thread - 1]
                for place in T.serial(count):
                    following[0] = combine(
                        running[0], T.Cast(total, given[base + (start + place) * inner])
                    )
                    scanned[base + (start + place) * inner] = T.Cast(
                        dtype, running[0] if exclusive else following[0]
                    )
                    running[0] = following[0]

    return WrittenKernel(function, {"given": dtype, "scanned": dtype}, ("length", "inner", "rows"))
