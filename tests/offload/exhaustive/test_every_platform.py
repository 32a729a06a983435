"""One command validates a whole Llama on every platform of the paper that this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.warm_cache import warm_cache

PLATFORMS = ("opencl", "vulkan", "webgpu", "metal", "cuda", "rocm")
PROMPT = ("--tokens", "1 2 3 4", "--new-tokens", "8")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("model", ["pydoc-llama", "another"])
def test_operators_and_tokens_are_right_everywhere(
    model: str, dtype: str, tmp_path: Path, require_device: RequireDevice
) -> None:
    """`another` has two layers of an odd width, and three heads for each of its keys."""
    if model == "another":
        model = str(make_folder(tmp_path / "model"))
    devices = [each for name in PLATFORMS for each in require_device(name, dtype=dtype)]
    named = [f"{each.platform}:{each.index}" for each in devices]
    ended = run_here(
        "validate", "--model", model, "--dtype", dtype, *PROMPT, "--quiet", "--json",
        *(word for name in named for word in ("--device", name)),
        cache=warm_cache(tmp_path / "cache"),
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    found = json.loads(ended.output)
    rows = [*found["operators"], found["end_to_end"]]
    assert len(rows) > 20
    for row in rows:
        assert {name: row["cells"][name]["status"] for name in named} == dict.fromkeys(
            named, "pass"
        ), row
