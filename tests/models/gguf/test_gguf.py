"""A GGUF file is a model: its codes, its rows, its tokenizer; and a damaged one is one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tapml.models.gguf.blocks import KINDS, read_blocks
from tapml.models.gguf.bounds import check_bounds
from tapml.models.huggingface import load_model
from tapml.models.resolve import resolve_model
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError
from tests.models.gguf import written

HEAD = written.WIDTH // written.HEADS


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_unpack_to_the_bits_of_the_librarys_dequantizer(kind: str) -> None:
    matrix = np.random.default_rng(1).standard_normal((6, 512)).astype(np.float32)
    data = written.quantized(kind, matrix)
    unpacked = read_blocks(kind, data).unpacked().numpy()
    # A product with a negative zero may have the other sign of zero.
    np.testing.assert_array_equal(unpacked, written.dequantized(kind, data))


def own_llama(values: dict[str, np.ndarray], **more: object) -> LlamaForCausalLM:
    """transformers' class with the dequantized weights, q and k turned back as it turns them."""
    config = LlamaConfig(
        vocab_size=written.WORDS,
        hidden_size=written.WIDTH,
        intermediate_size=written.INNER,
        num_hidden_layers=written.LAYERS,
        num_attention_heads=written.HEADS,
        num_key_value_heads=written.GROUPS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        **more,
    )
    return filled(LlamaForCausalLM(config), values, turned=True)


FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
PACKED = NAMES | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


def filled(module: Any, values: dict[str, np.ndarray], *, turned: bool) -> Any:
    """A module of transformers with a file's values; `turned` puts rows of q and k back."""
    state = {}
    for name, value in values.items():
        parts = name.split(".")
        if parts[0] != "blk":
            inner = {"token_embd": "embed_tokens", "output_norm": "norm"}[parts[0]]
            state[f"model.{inner}.weight"] = value
            continue
        matrix = value
        if turned and parts[2] in ("attn_q", "attn_k"):
            matrix = np.concatenate(
                [
                    np.concatenate([value[at : at + HEAD : 2], value[at + 1 : at + HEAD : 2]])
                    for at in range(0, len(value), HEAD)
                ]
            )
        names = NAMES | FOUR_NORMS if hasattr(module.config, "query_pre_attn_scalar") else NAMES
        names = PACKED if "attn_qkv" in name or module.config.model_type == "phi3" else names
        whole = f"model.layers.{parts[1]}.{names[parts[2]]}"
        state[whole if parts[2].endswith("exps") else f"{whole}.{parts[3]}"] = matrix
    tensors = {name: torch.from_numpy(np.array(each)) for name, each in state.items()}
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    module.tie_weights()
    return module.eval()


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_a_file_computes_what_transformers_computes_with_its_weights(
    kind: str, tmp_path: Path
) -> None:
    values = written.write_llama(tmp_path / "small.gguf", kind)
    model = load_model(tmp_path / "small.gguf")
    assert model.quantization == f"GGUF {kind}"
    assert model.name == "small"
    assert_same_logits(model.module, own_llama(values))
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("the1")
    assert ids == (95, ALPHABET_ONE)
    assert model.tokenizer.decode(ids) == "the1"
    assert resolve_model(tmp_path / "small.gguf") == resolve_model(tmp_path / "small.gguf")


WINDOWED = {"sliding_window": 8}
OWN: dict[str, dict[str, Any]] = {
    "gemma2": WINDOWED | {"query_pre_attn_scalar": HEAD},
    "gemma3": WINDOWED | {"query_pre_attn_scalar": HEAD},
    "phi3": WINDOWED | {"pad_token_id": None},
    "smollm3": {"pad_token_id": None},
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
}


def own_config(architecture: str, **more: object) -> Any:
    """The configuration of transformers' class for a file of :func:`written.write_llama`."""
    return AutoConfig.for_model(
        "gemma3_text" if architecture == "gemma3" else architecture,
        **{
            "vocab_size": written.WORDS,
            "hidden_size": written.WIDTH,
            "intermediate_size": written.INNER,
            "num_hidden_layers": written.LAYERS,
            "num_attention_heads": written.HEADS,
            "num_key_value_heads": written.GROUPS,
            "head_dim": HEAD,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            **OWN.get(architecture, {}),
            **more,
        },
    )


@pytest.mark.parametrize(
    "architecture",
    ["qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite", "smollm3", "olmo2"],
)
def test_a_file_of_another_architecture_computes_what_its_class_computes(
    architecture: str, tmp_path: Path
) -> None:
    """Biases, normalised heads, norms with 1 added, packed rows, scales; few turn rows."""
    values = written.write_llama(tmp_path / "small.gguf", "Q8_0", architecture=architecture)
    config = own_config(architecture)
    if architecture.startswith("gemma"):
        values = {name: value - 1 if "norm" in name else value for name, value in values.items()}
    turned = architecture in ("granite", "smollm3")
    own = filled(AutoModelForCausalLM.from_config(config), values, turned=turned)
    model = load_model(tmp_path / "small.gguf")
    assert type(model.module).__name__ == type(own).__name__
    assert_same_logits(model.module, own)
    assert root_wrapper(model) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        (
            "qwen3moe",
            {
                "num_experts": written.EXPERTS,
                "moe_intermediate_size": written.EXPERT_INNER,
                "norm_topk_prob": True,
            },
        ),
        (
            "mixtral",
            {
                "num_local_experts": written.EXPERTS,
                "intermediate_size": written.EXPERT_INNER,
                "sliding_window": None,
            },
        ),
    ],
)
@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_a_file_of_experts_computes_what_its_class_computes(
    architecture: str, sizes: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    more = {"llama.feed_forward_length": written.EXPERT_INNER} if architecture == "mixtral" else {}
    values = written.write_llama(
        tmp_path / "small.gguf", kind, architecture=architecture, more=more
    )
    for layer in range(written.LAYERS):
        begin = f"blk.{layer}.ffn"
        gate, up = (values.pop(f"{begin}_{each}_exps.weight") for each in ("gate", "up"))
        values[f"{begin}_gate_up_exps.weight"] = np.concatenate([gate, up], 1)
    name = {"qwen3moe": "qwen3_moe"}.get(architecture, architecture)
    config = own_config(name, **sizes, num_experts_per_tok=written.CHOSEN)
    own = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    own = filled(own, values, turned=architecture == "mixtral")
    model = load_model(tmp_path / "small.gguf")
    assert type(model.module).__name__ == type(own).__name__
    assert_same_logits(model.module, own)
    assert root_wrapper(model) < 1e-5


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_a_file_of_floats_is_a_model_without_quantization(kind: str, tmp_path: Path) -> None:
    values = written.write_llama(tmp_path / "small.gguf", kind, frequencies=[1.0] * (HEAD // 2))
    model = load_model(tmp_path / "small.gguf")
    assert model.quantization == ""
    assert_same_logits(model.module, own_llama(values))


def test_a_file_without_a_tokenizer_has_the_words_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vocab_size", "tokenizer_model", "tokenizer_pre", "token_list", "token_merges"):
        monkeypatch.setattr(written.gguf.GGUFWriter, f"add_{name}", lambda *_: None)
    monkeypatch.setattr(written.gguf.GGUFWriter, "add_token_types", lambda *_: None)
    values = written.write_llama(tmp_path / "small.gguf", "Q8_0")
    model = load_model(tmp_path / "small.gguf")
    assert model.tokenizer is None
    assert_same_logits(model.module, own_llama(values))


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 4.0}, _YARN])
def test_a_scaling_of_positions_is_the_models(tmp_path: Path, rope: dict[str, Any]) -> None:
    path = tmp_path / "small.gguf"
    values = written.write_llama(path, "Q8_0", scaling=(rope["rope_type"], 4.0))
    module = load_model(path).module
    assert_same_logits(module, own_llama(values, rope_parameters=rope | {"rope_theta": 10000.0}))
    with pytest.raises(AssertionError):
        assert_same_logits(module, own_llama(values))


def test_factors_of_the_frequencies_are_the_scaling_of_llama_3(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }
    plain: Any = LlamaRotaryEmbedding(LlamaConfig(head_dim=HEAD))
    scaled: Any = LlamaRotaryEmbedding(LlamaConfig(head_dim=HEAD, rope_parameters=rope))
    factors = (plain.inv_freq / scaled.inv_freq).tolist()
    assert min(factors) == 1
    assert max(factors) == 8
    path = tmp_path / "small.gguf"
    values = written.write_llama(path, "Q8_0", frequencies=factors)
    model = load_model(path)
    assert_same_logits(model.module, own_llama(values, rope_parameters=rope))
    assert root_wrapper(model) < 1e-5


def test_phi_3_has_other_frequencies_beyond_a_length_and_turns_a_part(tmp_path: Path) -> None:
    turned = 3 * HEAD // 4
    factors = [1 + at / 8 for at in range(turned // 2)]
    original = "phi3.rope.scaling.original_context_length"
    values = written.write_llama(
        tmp_path / "small.gguf",
        "Q8_0",
        architecture="phi3",
        short_factors=factors,
        more={original: 32, "phi3.rope.dimension_count": turned},
    )
    model = load_model(tmp_path / "small.gguf")
    assert model.context_length == 32
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 32}
    scaled = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
    config = own_config("phi3", rope_parameters=scaled, partial_rotary_factor=0.75, **lengths)
    own = filled(AutoModelForCausalLM.from_config(config), values, turned=False)
    assert_same_logits(model.module, own)
    written.write_llama(tmp_path / "none.gguf", "Q8_0", architecture="phi3", short_factors=factors)
    with pytest.raises(InputError, match=r"rope_factors_short.weight of shape .*: expected \(32,"):
        resolve_model(tmp_path / "none.gguf")


def test_scalings_that_are_not_done_are_refused_by_name(tmp_path: Path) -> None:
    written.write_llama(tmp_path / "a.gguf", "Q8_0", scaling=("longrope", 4.0))
    with pytest.raises(InputError, match="RoPE scaling 'longrope': expected none, linear or yarn"):
        resolve_model(tmp_path / "a.gguf")
    written.write_llama(tmp_path / "b.gguf", "Q8_0", frequencies=[8.0] * 3)
    with pytest.raises(InputError, match=r"rope_freqs.weight of shape \(3,\) as F32: expected"):
        resolve_model(tmp_path / "b.gguf")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"split.count": 3, "split.no": 1}, "is part 2 of 3: expected a whole model; join"),
        ({"llama.rope.dimension_count": 2}, "turns 2 numbers of a head of .*: expected all"),
        ({"llama.attention.causal": False}, "is an encoder"),
        ({"llama.attention.sliding_window": 8}, "a window of 8 tokens, which LlamaForCausalLM"),
        ({"general.type": "adapter"}, "of the type 'adapter': expected a model; .*export-lora"),
    ],
)
def test_what_the_tensors_do_not_show_is_refused(
    more: dict[str, int | str], said: str, tmp_path: Path
) -> None:
    written.write_llama(tmp_path / "a.gguf", "Q8_0", more=more)
    with pytest.raises(InputError, match=said):
        resolve_model(tmp_path / "a.gguf")


def assert_same_logits(ours: torch.nn.Module, own: torch.nn.Module) -> None:
    tokens = torch.arange(1, 30).unsqueeze(0)
    with torch.no_grad():
        found = ours(input_ids=tokens, use_cache=False).logits
        expected = own(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5 * float(expected.abs().max()))


ALPHABET_ONE = written.ALPHABET.index("1")
Damage = Callable[[bytes], bytes]


def _claimed(offset: int, number: int) -> Damage:
    return lambda data: data[:offset] + struct.pack("<Q", number) + data[offset + 8 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:40], "claims 20 bytes of a name: expected at most 8"),
        (lambda data: data[: len(data) // 2], "not a whole GGUF file"),
        (lambda data: b"GGML" + data[4:], "does not begin with GGUF"),
        (lambda data: data[:4] + b"\x00\x00\x00\x03" + data[8:], "version 50331648"),
        (_claimed(8, 1 << 60), "claims 1152921504606846976 tensors"),
        (_claimed(16, 1 << 60), "claims 1152921504606846976 fields"),
        (_claimed(24, 1 << 60), "bytes of a name"),
    ],
)
def test_a_damaged_file_is_refused_in_a_line(damage: Damage, said: str, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    written.write_llama(path, "Q8_0")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=said) as caught:
        resolve_model(path)
    assert "\n" not in str(caught.value)


def test_every_beginning_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    written.write_llama(path, "Q8_0")
    whole = path.read_bytes()
    check_bounds(path)
    for length in range(0, 1500, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            check_bounds(path)


def test_another_architecture_and_another_kind_are_named(tmp_path: Path) -> None:
    written.write_llama(tmp_path / "a.gguf", "Q8_0", architecture="falcon")
    with pytest.raises(
        InputError, match=r"architecture 'falcon': expected llama, qwen2.*--quantize"
    ):
        resolve_model(tmp_path / "a.gguf")
    written.write_llama(tmp_path / "b.gguf", "TQ2_0")
    with pytest.raises(InputError, match=r"token_embd.weight as TQ2_0: expected one of Q8_0"):
        resolve_model(tmp_path / "b.gguf")
