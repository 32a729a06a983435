"""Probes in an exported folder, made on a machine with the compiler and replayed without it.

A probe is its raw inputs, the reference's raw outputs and the expected float64 results
(:mod:`tapml.oracles.probing`), stored as one blob. Nothing read back is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from tapml.oracles.expectation_store import decode, encode
from tapml.oracles.probes import ProbeCase
from tapml.plan.graph_plan import Operator
from tapml.verdicts.operator_class import checked_class
from tapml_targets.dtype import dtype as lookup
from tapml_targets.library import Parameter

Array = NDArray[Any]


def pack_probe(probe: ProbeCase) -> bytes:
    """Encode a probe for :func:`unpack_probe`."""
    return cast(
        bytes,
        msgpack.packb(
            [
                dict(probe.symbols),
                [_packed(array) for array in probe.arrays],
                [_packed(array) for array in probe.results],
                [[o.operator_class, o.arithmetic] for o in probe.expectation.outputs],
                encode(probe.expectation, probe.results),
            ]
        ),
    )


def unpack_probe(data: bytes, identifier: str, operator: Operator) -> ProbeCase:
    """Decode a probe of an operator.

    Raises
    ------
    ValueError, TypeError, IndexError, InputError
        If `data` is not a probe that matches the operator.
    """
    symbols, packed_inputs, packed_results, kinds, encoded = msgpack.unpackb(data)
    arrays = _unpacked(packed_inputs, operator.read)
    results = _unpacked(packed_results, operator.written)
    expectation = decode(bytes(encoded), operator, lambda: list(arrays), results)
    outputs = []
    for output, kind in zip(expectation.outputs, kinds, strict=True):
        operator_class, arithmetic = checked_class(kind)
        outputs.append(replace(output, operator_class=operator_class, arithmetic=arithmetic))
    return ProbeCase(
        identifier,
        operator.name,
        {str(name): int(value) for name, value in symbols.items()},
        arrays,
        results,
        replace(expectation, outputs=tuple(outputs)),
    )


def _packed(array: Array) -> tuple[list[int], bytes]:
    return list(array.shape), np.ascontiguousarray(array).tobytes()


def _unpacked(packed: Sequence[Any], parameters: Sequence[Parameter]) -> tuple[Array, ...]:
    arrays = []
    for (shape, data), parameter in zip(packed, parameters, strict=True):
        carrier = np.dtype(lookup(parameter.dtype).numpy_name)
        extents = tuple(int(extent) for extent in shape)
        if min(extents, default=0) < 0 or prod(extents) * carrier.itemsize != len(data):
            raise ValueError(f"{parameter.name}: {len(data)} bytes for {carrier}{list(extents)}")
        arrays.append(np.frombuffer(data, carrier).reshape(extents))
    return tuple(arrays)
