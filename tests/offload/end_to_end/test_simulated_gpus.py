"""A model of one layer on CUDA and ROCm where there is no such GPU: its kernels are simulated."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import NEW_TOKENS, TOKENS
from tests.offload.warm_cache import warm_cache


def test_operators_and_tokens_are_right_on_cuda_and_on_waves_of_both_widths(
    tiny_model: Path, require_device: RequireDevice, tmp_path: Path
) -> None:
    devices = [
        each
        for platform in ("cuda", "rocm")
        for each in require_device(platform)
        if each.device_type == "simulated"
    ]
    widths = {each.limits.subgroup_widths for each in devices if each.platform == "rocm"}
    assert widths == {(32, 32), (64, 64)}
    named = [f"{each.platform}:{each.index}" for each in devices]
    ended = run_here(
        "validate", "--model", tiny_model, "--tokens", TOKENS, "--new-tokens", NEW_TOKENS, "--json",
        *(word for name in named for word in ("--device", name)),
        cache=warm_cache(tmp_path / "cache"),
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    report = json.loads(ended.output)
    assert len(report["operators"]) > 10
    for row in (*report["operators"], report["end_to_end"]):
        assert {name: row["cells"][name]["status"] for name in named} == dict.fromkeys(
            named, "pass"
        ), row["operator"]
