"""Probes as plain data, from the process that makes them to the one that replays them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.index_source import locate_source
from tapml.compare.probes import ProbeCase
from tapml.graph.plan import Operator

Array = NDArray[Any]


def pack_probe(probe: ProbeCase) -> dict[str, Any]:
    """A probe as data that msgpack carries."""
    expectation = probe.expectation
    return {
        "id": probe.id,
        "symbols": dict(probe.symbols),
        "arrays": [_pack(array) for array in probe.arrays],
        "results": [_pack(array) for array in probe.results],
        "terms": expectation.terms,
        "repeats": expectation.repeats,
        "outputs": [
            {
                "values": _pack(output.values),
                "sensitivity": _pack(output.sensitivity),
                "source": output.source_place,
                "reference_ratio": output.reference_ratio,
                "operator_class": output.operator_class,
                "arithmetic": output.arithmetic,
            }
            for output in expectation.outputs
        ],
    }


def unpack_probe(data: dict[str, Any], operator: Operator) -> ProbeCase:
    """What :func:`pack_probe` packed, of the same operator."""
    arrays = tuple(_unpack(each) for each in data["arrays"])
    results = tuple(_unpack(each) for each in data["results"])
    outputs = []
    for parameter, kind, raw, packed in zip(
        operator.written, operator.output_kinds, results, data["outputs"], strict=True
    ):
        place = packed["source"]
        source = None
        if place is not None:
            source = locate_source(place, operator.read, arrays, raw.shape)
        outputs.append(
            ExpectedOutput(
                parameter.name,
                parameter.dtype,
                kind,
                _unpack(packed["values"]),
                _unpack(packed["sensitivity"]),
                source,
                packed["reference_ratio"],
                packed["operator_class"],
                packed["arithmetic"],
            )
        )
    expectation = Expectation(tuple(outputs), data["terms"], data["repeats"])
    return ProbeCase(data["id"], operator.name, data["symbols"], arrays, results, expectation)


def _pack(array: Array) -> list[Any]:
    return [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _unpack(data: list[Any]) -> Array:
    dtype, shape, content = data
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)
