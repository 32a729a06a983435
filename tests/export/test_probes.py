"""Probes as blobs: read back as they were, refused where they do not fit their operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.export.probes import pack_probe, unpack_probe
from tapml.oracles.probes import ProbeCase, probes_of
from tapml.plan.graph_plan import Operator
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError
from tests.oracles.cases import make_case
from tests.oracles.operators import make_operator

SHAPES = ((3, 48), (48, 20))


@pytest.fixture(scope="module")
def product() -> Operator:
    return make_operator("product", [(shape, "float16") for shape in SHAPES], relax.op.matmul)


@pytest.fixture(scope="module")
def probe(product: Operator) -> ProbeCase:
    only: Iterable[Operator] = [product]
    reference = compile_reference(only)
    draw = np.random.default_rng(5).standard_normal
    case = make_case(product, reference, [draw(shape).astype(np.float16) for shape in SHAPES])
    twin = compile_twins(only)[product.name]
    return probes_of(product, case, twin, reference[product.name])[0]


def test_a_probe_is_read_back_as_it_was(product: Operator, probe: ProbeCase) -> None:
    again = unpack_probe(pack_probe(probe), probe.id, product)
    assert again.key == probe.key
    assert (again.id, again.operator, again.symbols) == (probe.id, product.name, probe.symbols)
    for before, after in zip(probe.expectation.outputs, again.expectation.outputs, strict=True):
        np.testing.assert_array_equal(before.values, after.values)
        np.testing.assert_array_equal(before.sensitivity, after.sensitivity)
        assert before.operator_class == after.operator_class == "exact"


def test_it_judges_as_it_did(product: Operator, probe: ProbeCase) -> None:
    again = unpack_probe(pack_probe(probe), probe.id, product)
    (right,) = again.results
    wrong = right.copy()
    wrong[1, 2] += 1
    assert judge(product, again.expectation, None, [right], Policy()).status == "pass"
    assert judge(product, again.expectation, None, [wrong], Policy()).status == "fail"


@pytest.mark.parametrize("part", range(5))
def test_a_damaged_one_is_refused(product: Operator, probe: ProbeCase, part: int) -> None:
    content = msgpack.unpackb(pack_probe(probe))
    content[part] = [] if part else 7
    with pytest.raises((ValueError, TypeError, IndexError, AttributeError, InputError)):
        unpack_probe(msgpack.packb(content), probe.id, product)


def test_one_of_another_shape_is_refused(product: Operator, probe: ProbeCase) -> None:
    smaller = replace(probe, arrays=(probe.arrays[0], probe.arrays[1][:, :-1]))
    content = msgpack.unpackb(pack_probe(smaller))
    content[1][1][0] = [48, 20]
    with pytest.raises(ValueError, match="bytes for float16"):
        unpack_probe(msgpack.packb(content), probe.id, product)
