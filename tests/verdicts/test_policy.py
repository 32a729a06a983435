"""Policies: what they bound, what they refuse, what identifies them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tapml.verdicts.limits import DEFAULT_LIMITS, RatioLimits
from tapml.verdicts.operator_class import OperatorClass
from tapml.verdicts.policy import Override, Policy
from tapml_targets.errors import InputError

Rows = tuple[tuple[str, OperatorClass, RatioLimits], ...]


def test_the_default_policy_is_not_loosened() -> None:
    assert Policy().loosened == ()


def test_loosening_without_a_reason_is_refused() -> None:
    looser: Rows = (("float32", "product", RatioLimits(100.0, 400.0)),)
    with pytest.raises(InputError, match=r"float32 product are looser .* say why"):
        Policy(limits=looser)
    policy = Policy(limits=looser, reason="half-rate device")
    assert policy.loosened == ("float32 product: half-rate device",)


def test_tightening_needs_no_reason() -> None:
    policy = Policy(limits=(("float32", "product", RatioLimits(8.0, 16.0)),))
    assert policy.loosened == ()
    product = policy.choose("matmul", "float32", 1, operator_class="product").limits
    assert product == RatioLimits(8.0, 16.0)
    softmax = policy.choose("softmax", "float32", 1, operator_class="softmax").limits
    assert softmax == DEFAULT_LIMITS["float32"]["softmax"]


def test_an_override_needs_a_reason_and_is_shown() -> None:
    limits = RatioLimits(500.0, 900.0)
    with pytest.raises(InputError, match="has no reason"):
        Policy(overrides=(Override("fused_gelu*", limits, " "),))
    policy = Policy(overrides=(Override("fused_gelu*", limits, "tanh table on this device"),))
    assert policy.choose("fused_gelu3", "float32", 1).limits == limits
    assert policy.choose("matmul", "float32", 1).limits == DEFAULT_LIMITS["float32"]["unclassified"]
    assert policy.loosened == ("fused_gelu*: tanh table on this device",)


@pytest.mark.parametrize("passing, degraded", [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))])
def test_limits_that_bound_nothing_are_refused(passing: float, degraded: float) -> None:
    with pytest.raises(InputError, match="expected 0 < passing <= degraded"):
        Policy(limits=(("float32", "scan", RatioLimits(passing, degraded)),), reason="a test")


def test_limits_grow_with_the_square_root_of_the_terms() -> None:
    policy = Policy()
    length = DEFAULT_LIMITS["float32"]["product"].terms_without_growth
    short, long = (
        policy.choose("matmul", "float32", length * n, operator_class="product").limits
        for n in (1, 16)
    )
    assert long.passing == 4 * short.passing


def test_the_hash_follows_every_field() -> None:
    policy = Policy()
    assert policy.hash == Policy().hash
    others = [
        replace(policy, repeats=4),
        replace(policy, seed=1),
        replace(policy, limits=(("float32", "scan", RatioLimits(8.0, 16.0, 512)),)),
        replace(policy, limits=(("float32", "scan", RatioLimits(8.0, 16.0)),)),
        replace(policy, overrides=(Override("x", RatioLimits(1.0, 2.0), "why"),)),
    ]
    assert len({policy.hash, *(other.hash for other in others)}) == 6


def test_a_policy_survives_json() -> None:
    policy = Policy(
        limits=(("float16", "softmax", RatioLimits(8.0, 16.0)),),
        overrides=(Override("x*", RatioLimits(1.0, 2.0), "why", "float16", "product", "o*"),),
    )
    again = Policy.from_json(json.loads(json.dumps(policy.to_json())))
    assert again == policy
    assert again.hash == policy.hash


def test_json_that_is_no_policy_is_refused() -> None:
    with pytest.raises(InputError, match="not a policy"):
        Policy.from_json({"version": 2, "nonsense": 2, "limits": [], "overrides": []})
    with pytest.raises(InputError, match="policy version 99"):
        Policy.from_json({"version": 99})
