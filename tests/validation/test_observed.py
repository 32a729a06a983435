"""Call sites of one run, observed as tests: ids, arrays, keys."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.execute.arrays import Array
from tapml.validation.observed import ObservedTest, observe
from tests.small_llama import PROMPTS, SmallLlama

Observed = tuple[list[ObservedTest], dict[str, Array]]


def run(llama: SmallLlama, prompt: tuple[int, ...]) -> Observed:
    return observe(llama.executor(), "prefill", llama.model.prepare_prefill(prompt))


@pytest.fixture(scope="module")
def observed(llama: SmallLlama) -> Observed:
    return run(llama, PROMPTS[0])


def test_every_call_site_is_a_test_in_the_plans_order(
    llama: SmallLlama, observed: Observed
) -> None:
    tests, _ = observed
    calls = llama.plan.entries["prefill"].calls
    assert [(test.id, test.operator) for test in tests] == [(c.site, c.operator) for c in calls]
    for test in tests:
        operator = llama.plan.operators[test.operator]
        assert len(test.read_inputs()) == len(test.inputs) == len(operator.read)
        assert len(test.read_outputs()) == len(operator.written)


def test_the_outputs_are_those_of_a_plain_run(llama: SmallLlama, observed: Observed) -> None:
    plain = llama.executor().run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    assert observed[1].keys() == plain.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(observed[1][name], array)


def test_a_key_is_of_the_content_of_inputs_and_outputs(
    llama: SmallLlama, observed: Observed
) -> None:
    keys = [test.key for test in observed[0]]
    assert [test.key for test in run(llama, PROMPTS[0])[0]] == keys
    other = tuple(token + 1 for token in PROMPTS[0])
    changed = [test.key for test in run(llama, other)[0]]
    # What reads positions and the mask alone does not know the prompt.
    assert keys[-1] != changed[-1]
    assert 0 < sum(one != two for one, two in zip(keys, changed, strict=True)) < len(keys)


def test_a_weights_key_is_its_place_so_that_layers_differ(observed: Observed) -> None:
    weights = [each for test in observed[0] for each in test.inputs if each.lifetime == "weight"]
    assert len({each.key for each in weights}) > 2
    assert {each.lifetime for test in observed[0] for each in test.inputs} > {"weight"}
