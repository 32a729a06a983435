"""Float weights become packed ones within the error that their bits allow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaTextScaledWordEmbedding

from tapml.models.huggingface import load_any
from tapml.models.packed.modules import PackedEmbedding, PackedLinear
from tapml.models.packed.operation import codes_of, words_of
from tapml.models.packed.quantizers import SCHEMES, quantize_module
from tapml.models.weights_hash import hash_weights
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError
from tests.models.families import make_family


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_words_hold_every_code(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, 64), dtype=torch.int32)
    codes[0, :] = (1 << bits) - 1
    assert torch.equal(codes_of(words_of(codes, bits), bits), codes)


@pytest.mark.parametrize(
    ("scheme", "share", "error"),
    [("int8", 0.282, 0.005), ("int4", 0.188, 0.09), ("fp16", 0.5, 5e-4), ("bf16", 0.5, 4e-3)],
)
def test_a_scheme_has_its_size_and_its_error(scheme: str, share: float, error: float) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(64, 128)
    weight = SCHEMES[scheme].matrix(matrix, "w")
    nbytes = sum(each.nbytes for each in weight.tensors().values())
    assert nbytes / matrix.nbytes <= share
    assert 0 < (weight.unpacked() - matrix).abs().max() / matrix.abs().max() < error


@pytest.mark.parametrize(("scheme", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_sixteen_bits_are_the_nearest_number_of_the_format(scheme: str, dtype: torch.dtype) -> None:
    matrix = torch.tensor([[6e-8, -6e-5, 1.0, -3.14159, 65504.0, 0.0, -0.0, 1e-3]])
    assert torch.equal(SCHEMES[scheme].matrix(matrix, "w").unpacked(), matrix.to(dtype).float())


def test_a_group_of_zeros_stays_zero() -> None:
    for scheme in SCHEMES.values():
        assert not scheme.matrix(torch.zeros(2, 64), "w").unpacked().any()


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.inner = nn.Linear(64, 64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embed.weight


def test_layers_that_share_a_weight_share_its_codes() -> None:
    module = _Tied()
    quantize_module(module, "int4")
    embed, head = module.get_submodule("embed"), module.get_submodule("head")
    assert isinstance(embed, PackedEmbedding)
    assert isinstance(head, PackedLinear)
    assert embed.packed.codes.data_ptr() == head.packed.codes.data_ptr()
    assert head.bits == 8


def test_the_hash_of_weights_tells_codes_apart_that_mean_other_numbers() -> None:
    module = _Tied()
    quantize_module(module, "int4")
    before = hash_weights(module)
    vars(module.get_submodule("inner"))["zero"] = 7
    assert hash_weights(module) != before


def test_what_cannot_be_quantized_says_so() -> None:
    with pytest.raises(InputError, match="expected one of int8, int4, fp16, bf16"):
        quantize_module(_Tied(), "int3")
    with pytest.raises(InputError, match="no linear layer whose rows fill"):
        quantize_module(nn.Sequential(nn.Linear(5, 3)), "int4")
    with pytest.raises(InputError, match=r"beyond torch\.float16.*use bf16"):
        quantize_module(nn.Sequential(nn.Linear(8, 3).apply(_huge)), "fp16")


def _huge(layer: nn.Module) -> None:
    nn.init.constant_(layer.weight, 1e6)  # type: ignore[arg-type]


def test_an_embedding_that_scales_its_vectors_still_does() -> None:
    table = GemmaTextScaledWordEmbedding(10, 64, 0, embed_scale=8.0)
    model = nn.Sequential(table)
    tokens = torch.arange(10)
    with torch.no_grad():
        expected = table(tokens)
    quantize_module(model, "bf16")
    assert isinstance(model[0], PackedEmbedding)
    torch.testing.assert_close(model(tokens), expected, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_an_encoder_decoder_is_quantized_with_its_cross_attention(
    tmp_path: Path, family: str
) -> None:
    model = load_any(make_family(tmp_path / "model", family), quantize="int8")
    assert model.quantization == "int8"
    layers = [name for name, each in model.module.named_modules() if hasattr(each, "packed")]
    assert any(
        "cross" in name or "EncDecAttention" in name or "encoder_attn" in name for name in layers
    )
    assert root_wrapper(model) < 1e-5


def test_a_model_of_images_is_quantized(tmp_path: Path) -> None:
    model = load_any(make_family(tmp_path / "model", "vit"), quantize="int4")
    assert model.quantization == "int4"
    assert model.notes[0].startswith("weights of 11 layers are quantized to int4; 2 with other")
    assert root_wrapper(model) < 1e-5
