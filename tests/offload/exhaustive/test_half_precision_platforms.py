"""A Llama of one layer in float16 is right on every platform that computes in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import NEW_TOKENS, TOKENS

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated GPUs")

PLATFORMS = ("vulkan", "metal", "cuda", "rocm")


def test_all_operators_and_the_tokens_are_right_in_half_precision(
    tiny_model: Path, tmp_path: Path, require_device: RequireDevice
) -> None:
    devices = [require_device(name, dtype="float16")[0] for name in PLATFORMS]
    named = [f"{each.platform}:{each.index}" for each in devices]
    chosen = [word for name in named for word in ("--device", name)]
    ended = run_here(
        "validate", "--model", str(tiny_model), "--dtype", "float16", "--tokens", TOKENS,
        "--new-tokens", NEW_TOKENS, "--json", *chosen,
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    report = json.loads(ended.output)
    assert report["operators"]
    for row in (*report["operators"], report["end_to_end"]):
        assert {cell["status"] for cell in row["cells"].values()} == {"pass"}, row["operator"]
        assert set(row["cells"]) == set(named)
