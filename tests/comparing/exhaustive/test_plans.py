"""Plans of encoders, encoder-decoders and modules against their sources, with a fault planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparing.end_to_end.test_session import find_scaled, scaled_weight
from tests.conftest import RequireDevice
from tests.models.families import make_family
from tests.offload.commands import run_here
from tests.offload.warm_cache import warm_cache

# A weight that is doubled, and the call site that it goes wrong at.
MODELS = {
    "bart": ("model.encoder.layers.1.fc1.weight",
             "encode/encoder.layers.1.activation_fn/fused_matmul_transposed_add_gelu"),
    "bert": ("encoder.layer.1.output.dense.weight",
             "encoder.layer.1.output/fused_matmul_transposed_add_add"),
    "t5": ("decoder.block.0.layer.1.EncDecAttention.q.weight",
           "decode/decoder.block.0.layer.1.EncDecAttention.q/matmul_transposed_2"),
    "whisper": ("model.decoder.layers.0.fc1.weight",
                "decode/decoder.layers.0.activation_fn/fused_matmul_transposed_add_gelu_2"),
    "digits-cnn": ("second.weight", "fused_conv2d_add_relu_2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_a_fault_is_named_at_its_call_site(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_device: RequireDevice
) -> None:
    weight, layer = MODELS[kind]
    model = kind if kind == "digits-cnn" else make_family(tmp_path / kind, kind)
    session, cache = tmp_path / "session", warm_cache(tmp_path / "cache")
    device = f"opencl:{min(each.index for each in require_device('opencl'))}"
    ended = run_here(
        "offload", "--model", model, "--device", device, "--session", session, "--prompts", "1",
        "--quiet", "--strategy", "bisect", cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors
    monkeypatch.setenv("TAPML_CACHE_DIR", str(cache))
    with scaled_weight(tmp_path / "site", monkeypatch, weight):
        find_scaled(session, layer)
