"""RWKV5 and RWKV6 against the published formulas, token by token in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tapml.models import load_model
from tapml.own_operators import register
from tapml.rooting.own_forward import root_wrapper
from tests.models.families import make_family

Vector = NDArray[np.float64]
HEAD, HEADS, LAYERS = 12, 6, 2
TOKENS = (5, 17, 99, 3, 42, 8)


class Formulas:
    """The recurrence of the papers, with the weights of a folder by their published names."""

    def __init__(self, folder: Path, version: int) -> None:
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: value.astype(np.float64) for name, value in stored.items()}
        self.version = version
        self.before: dict[str, Vector] = {}
        self.matrix = np.zeros((LAYERS, HEADS, HEAD, HEAD))
        for layer in range(LAYERS):
            initial = self.weights.get(f"rwkv.blocks.{layer}.attention.time_state")
            if initial is not None:
                self.matrix[layer] = initial.transpose(0, 2, 1)

    def __call__(self, token: int) -> Vector:
        """Logits after one more token."""
        x = self.weights["rwkv.embeddings.weight"][token]
        x = self.norm(x, "rwkv.blocks.0.pre_ln")
        for layer in range(LAYERS):
            block = f"rwkv.blocks.{layer}"
            x = x + self.attention(self.norm(x, f"{block}.ln1"), f"{block}.attention", layer)
            x = x + self.feed_forward(self.norm(x, f"{block}.ln2"), f"{block}.feed_forward")
        return np.asarray(self.weights["head.weight"] @ self.norm(x, "rwkv.ln_out"))

    def norm(self, x: Vector, name: str) -> Vector:
        """A layer norm."""
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        made: Vector = scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return made

    def previous(self, x: Vector, name: str) -> Vector:
        """The same place's input one token ago."""
        last = self.before.get(name, np.zeros_like(x))
        self.before[name] = x
        return last

    def attention(self, x: Vector, name: str, layer: int) -> Vector:
        """Time mixing."""
        w = {
            key.removeprefix(f"{name}."): value.squeeze() if "time_m" in key else value
            for key, value in self.weights.items()
            if key.startswith(f"{name}.")
        }
        last = self.previous(x, name)
        mixed = {}
        if self.version == 5:
            for part in ("receptance", "key", "value", "gate"):
                mix = w[f"time_mix_{part}"]
                mixed[part] = x * mix + last * (1 - mix)
            decay = np.exp(-np.exp(w["time_decay"]))
        else:
            low = np.tanh((x + (last - x) * w["time_maa_x"]) @ w["time_maa_w1"]).reshape(5, -1)
            for index, part in enumerate(("w", "key", "value", "receptance", "gate")):
                mix = w[f"time_maa_{part[0]}"] + low[index] @ w["time_maa_w2"][index]
                mixed[part] = x + (last - x) * mix
            raw = w["time_decay"].ravel()
            raw = raw + np.tanh(mixed["w"] @ w["time_decay_w1"]) @ w["time_decay_w2"]
            decay = np.exp(-np.exp(raw)).reshape(HEADS, HEAD)
        r, k, v = (
            (w[f"{part}.weight"] @ mixed[part]).reshape(HEADS, HEAD)
            for part in ("receptance", "key", "value")
        )
        y = np.zeros((HEADS, HEAD))
        for h in range(HEADS):
            pair = np.outer(k[h], v[h])
            y[h] = r[h] @ (self.matrix[layer, h] + np.diag(w["time_faaaa"][h]) @ pair)
            self.matrix[layer, h] = np.diag(decay[h]) @ self.matrix[layer, h] + pair
        # A group norm of the outputs divided by 8.
        y = y / 8
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
        gate = w["gate.weight"] @ mixed["gate"]
        normed = y.ravel() * w["ln_x.weight"] + w["ln_x.bias"]
        return np.asarray(w["output.weight"] @ (normed * gate / (1 + np.exp(-gate))))

    def feed_forward(self, x: Vector, name: str) -> Vector:
        """Channel mixing."""
        last = self.previous(x, name)
        made = {}
        for part in ("key", "receptance"):
            if self.version == 5:
                mix = self.weights[f"{name}.time_mix_{part}"].squeeze()
                mixed = x * mix + last * (1 - mix)
            else:
                mixed = x + (last - x) * self.weights[f"{name}.time_maa_{part[0]}"].squeeze()
            made[part] = self.weights[f"{name}.{part}.weight"] @ mixed
        value = self.weights[f"{name}.value.weight"] @ np.maximum(made["key"], 0) ** 2
        return np.asarray(value / (1 + np.exp(-made["receptance"])))


@pytest.mark.parametrize(("version", "initial"), [(5, False), (6, False), (6, True)])
def test_a_model_computes_the_published_formulas(
    tmp_path: Path, version: int, initial: bool
) -> None:
    folder = make_family(tmp_path / "model", f"rwkv{version}", initial_state=initial)
    formulas = Formulas(folder, version)
    expected = np.stack([formulas(token) for token in TOKENS])
    module = load_model(folder).module
    with torch.no_grad():
        whole = module(torch.tensor([TOKENS])).logits[0].numpy()
        state, parts = None, []
        for piece in (TOKENS[:1], TOKENS[1:4], TOKENS[4:]):
            output = module(torch.tensor([piece]), state=state)
            state = output.state
            parts.append(output.logits[0].numpy())
    scale = np.abs(expected).max()
    assert np.abs(whole - expected).max() < 1e-5 * scale
    # In pieces, the first of one token, a state takes the place of what came before.
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-5 * scale


def test_the_operation_refuses_tensors_that_do_not_fit() -> None:
    register()
    token, head = torch.zeros(2, 3, 4), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="a recurrence of tensors"):
        torch.ops.tapml.wkv5(token, token, token, head, head, torch.zeros(3, 4, 5))


def test_trained_initial_values_are_found_by_their_names_and_hold_after_every_reset(
    tmp_path: Path,
) -> None:
    folder = make_family(tmp_path / "model", "rwkv5", initial_state=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"initial_state": true', '"initial_state": false'))
    model = load_model(folder)
    assert root_wrapper(model) < 1e-5
    decode = model.entry_modules()[1]
    zeros = [torch.from_numpy(each) for each in model.empty_state().values()]
    with torch.no_grad():
        first = decode.module(torch.tensor([[5]]), *zeros)
        own = model.module(torch.tensor([[5]])).logits
        forgotten = decode.module(torch.tensor([[5]]), *zeros[:-1], torch.ones(1))[0]
    assert torch.equal(first[0], own)
    assert float(first[-1]) == 1
    assert not torch.allclose(forgotten, own, atol=1e-2)
