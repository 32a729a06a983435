"""An independent check as bytes, for the oracle's cache and for repro folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from tapml.compare.expectation import ExpectedOutput, IndependentCheck, IndependentOutput


def pack_check(check: IndependentCheck) -> bytes:
    """`check` as bytes that :func:`unpack_check` reads back beside the expected outputs."""
    outputs = [
        [
            output.twin_ratio,
            output.reference_ratio,
            output.bound,
            None if output.values is None else output.values.tobytes(),
        ]
        for output in check.outputs
    ]
    packed: bytes = msgpack.packb([check.reason, outputs])
    return packed


def unpack_check(data: bytes, outputs: Sequence[ExpectedOutput]) -> IndependentCheck:
    """What :func:`pack_check` packed; `outputs` are those of the same expectation.

    Raises
    ------
    ValueError
        If the bytes are no such check.
    """
    reason, rows = msgpack.unpackb(data)
    if not isinstance(reason, str) or len(rows) != (0 if reason else len(outputs)):
        raise ValueError("no independent check of these outputs")
    return IndependentCheck(
        tuple(
            IndependentOutput(float(twin), float(reference), float(bound), _values(raw, output))
            for (twin, reference, bound, raw), output in zip(
                rows, outputs[: len(rows)], strict=True
            )
        ),
        reason,
    )


def _values(raw: bytes | None, output: ExpectedOutput) -> Any:
    if raw is None:
        return None
    return np.frombuffer(raw, output.values.dtype).reshape(output.values.shape)
