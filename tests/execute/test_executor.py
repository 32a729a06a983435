"""The executor on the reference alone: results, state, errors."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from tapml.execute import executor as executor_module
from tapml.execute.executor import Executor
from tapml.execute.generate import greedy
from tapml.execute.schedule import DeviceCommands
from tapml_targets.errors import InputError
from tests.small_llama import PROMPTS, SmallLlama, state_of


def torch_greedy(llama: SmallLlama, prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = llama.model.module(torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prefill_and_decode_generate_what_pytorch_generates(
    llama: SmallLlama, prompt: tuple[int, ...]
) -> None:
    generated = list(greedy(llama.model, llama.executor(), prompt, 6, stop_at_end=False))
    assert [each.token for each in generated] == torch_greedy(llama, prompt, 6)
    assert generated[0].entry == ("decode" if len(prompt) == 1 else "prefill")
    assert {each.entry for each in generated[1:]} == {"decode"}


def test_a_snapshot_restarts_from_the_same_prefill(llama: SmallLlama) -> None:
    executor = llama.executor()
    executor.run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    snapshot = executor.snapshot_state()
    step = llama.model.prepare_decode(9, len(PROMPTS[0]))
    first = executor.run("decode", step)
    after = {name: state_of(executor, name) for name in llama.plan.state}
    executor.run("decode", llama.model.prepare_decode(10, len(PROMPTS[0]) + 1))
    executor.restore_state(snapshot)
    second = executor.run("decode", step)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    for name, array in after.items():
        np.testing.assert_array_equal(state_of(executor, name), array)


def test_reset_forgets_the_state(llama: SmallLlama) -> None:
    executor = llama.executor()
    executor.run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    assert any(state_of(executor, name).any() for name in llama.plan.state)
    executor.reset()
    assert not any(state_of(executor, name).any() for name in llama.plan.state)


def test_results_of_a_run_never_change(llama: SmallLlama) -> None:
    executor = llama.executor()
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    inputs = llama.model.prepare_prefill(PROMPTS[0])
    outputs = executor.run(
        "prefill",
        inputs,
        observer=lambda _, read, wrote: seen.extend((a, a.copy()) for a in (*read, *wrote)),
    )
    seen += [(array, array.copy()) for array in outputs.values()]
    for token in range(4):
        executor.run("decode", llama.model.prepare_decode(token, len(PROMPTS[0]) + token))
        executor.run("prefill", llama.model.prepare_prefill(PROMPTS[1]))
        gc.collect()
    for array, copy in seen:
        assert array.tobytes() == copy.tobytes()


def test_an_observer_sees_every_call_site_in_order(llama: SmallLlama) -> None:
    sites: list[str] = []
    llama.executor().run(
        "decode",
        llama.model.prepare_decode(3, 0),
        observer=lambda step, _read, _wrote: sites.append(step.site),
    )
    assert sites == [call.site for call in llama.plan.entries["decode"].calls]


def test_wrong_inputs_are_named(llama: SmallLlama) -> None:
    executor = llama.executor()
    inputs = llama.model.prepare_decode(3, 0)
    with pytest.raises(InputError, match=r"input token_ids of entry decode: expected.*\(1, 2\)"):
        executor.run("decode", inputs | {"token_ids": np.zeros((1, 2), np.int32)})
    with pytest.raises(InputError, match=r"token_ids.*expected dtype int32, got int64"):
        executor.run("decode", inputs | {"token_ids": np.zeros((1, 1), np.int64)})
    with pytest.raises(InputError, match="missing: token_ids"):
        executor.run("decode", {n: a for n, a in inputs.items() if n != "token_ids"})
    with pytest.raises(InputError, match="unknown: tokens"):
        executor.run("decode", inputs | {"tokens": inputs["token_ids"]})
    with pytest.raises(InputError, match="no entry 'encode'; known entries: prefill, decode"):
        executor.run("encode", inputs)


def test_a_length_outside_the_bounds_is_refused(llama: SmallLlama) -> None:
    inputs = llama.model.prepare_prefill((1, 2))
    one = {
        "token_ids": inputs["token_ids"][:, :1],
        "position_ids": inputs["position_ids"][:, :1],
        "cache_rows": inputs["cache_rows"],
        "attention_mask": inputs["attention_mask"][:, :, :1],
    }
    with pytest.raises(InputError, match=r"S from 2 to 512.*S = 1"):
        llama.executor().run("prefill", one)


def test_a_context_that_is_too_short_is_an_input_error(llama: SmallLlama) -> None:
    executor = llama.executor()
    with pytest.raises(InputError, match="need a context of 513"):
        greedy(llama.model, executor, tuple(range(100)), 414)
    with pytest.raises(InputError, match="no token"):
        greedy(llama.model, executor, (), 1)


def test_weights_are_checked_before_anything_runs(llama: SmallLlama) -> None:
    name = next(iter(llama.plan.weights))
    with pytest.raises(InputError, match=f"not given: {name}"):
        Executor(llama.plan, {n: a for n, a in llama.weights.items() if n != name}, llama.reference)
    with pytest.raises(InputError, match=f"weight {name}: expected float32"):
        Executor(llama.plan, llama.weights | {name: np.zeros((2, 2), np.float32)}, llama.reference)


def test_weights_that_are_not_aligned_work(llama: SmallLlama) -> None:
    shifted = {}
    for name, array in llama.weights.items():
        memory = np.empty(array.nbytes + 68, np.uint8)
        copy = memory[4 : 4 + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        shifted[name] = copy
    step = llama.model.prepare_decode(3, 0)
    expected = llama.executor().run("decode", step)
    got = Executor(llama.plan, shifted, llama.reference).run("decode", step)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_program_that_is_used_is_kept_while_others_come_and_go(
    llama: SmallLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "PROGRAMS_KEPT", 2)
    executor = llama.executor()
    step = llama.model.prepare_decode(3, 0)
    first = executor.program("decode", step)
    for length in range(2, 6):
        prefill = executor.program("prefill", llama.model.prepare_prefill(range(length)))
        assert executor.program("decode", step) is first
    again = executor.program("prefill", llama.model.prepare_prefill(range(2)))
    assert again is not prefill, "the one that was not used is gone"


def test_without_a_device_a_run_issues_no_device_commands(llama: SmallLlama) -> None:
    program = llama.executor().program("decode", llama.model.prepare_decode(3, 0))
    assert not any(isinstance(action, DeviceCommands) for action in program.actions)
