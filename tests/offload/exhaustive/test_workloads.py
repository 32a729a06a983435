"""Every kind of workload on every platform that has a device here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tapml.own_operators import KERNELS
from tapml_targets.platforms import platform_names
from tests.conftest import RequireDevice
from tests.offload.end_to_end import test_modules as modules
from tests.offload.end_to_end import test_workloads as workloads

# Platforms whose language the recurrences of RWKV are written in by hand.
BY_HAND = sorted(each.name for each in (KERNELS / "wkv5").iterdir())
PLATFORMS = [name for name in platform_names() if name != "cpu"]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "check",
    [
        workloads.gpt_neox_writes_what_transformers_generates,
        workloads.test_bert_gives_the_vectors_of_transformers_for_a_padded_batch,
        workloads.test_the_trained_cnn_gives_the_classes_of_torch,
        workloads.rwkv_writes_what_its_class_writes,
        workloads.test_t5_gives_the_logits_of_transformers,
        workloads.whisper_gives_the_tokens_of_transformers,
        workloads.distilbert_gives_the_vectors_of_transformers,
        workloads.vit_gives_the_classes_of_transformers,
        modules.test_a_torch_module_moves_and_goes_on_without_its_code,
        modules.test_an_onnx_file_gives_what_onnxruntime_gives,
    ],
    ids=[
        "decoder",
        "encoder",
        "cnn",
        "rwkv",
        "t5",
        "whisper",
        "distilbert",
        "vit",
        "torch",
        "onnx",
    ],
)
def test_a_workload_moves_and_ships(
    tmp_path: Path,
    require_device: RequireDevice,
    check: Callable[[Path, RequireDevice, str], None],
    platform: str,
) -> None:
    check(tmp_path, require_device, platform)


@pytest.mark.parametrize("platform", BY_HAND)
def test_a_recurrence_written_by_hand_moves_alone(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    workloads.test_a_recurrence_written_by_hand_moves_alone(tmp_path, require_device, platform)
