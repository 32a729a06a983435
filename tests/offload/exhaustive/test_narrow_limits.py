"""A whole model moves to a device whose bindings are less than a weight and whose buffers few."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.conftest import RequireDevice
from tests.models.folders import make_folder
from tests.offload.commands import run_process
from tests.offload.sessions import offload_arguments, read_report, states

LIMITS = """
description = "an embedding of 97 kB does not fit a binding, six buffers do not fit a kernel"
[limits]
max_binding_bytes = 65536
max_storage_buffers = 4
offset_alignment = 256
"""
SIZES: dict[str, Any] = {
    "vocab_size": 389,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "num_hidden_layers": 1,
}


def test_a_llama_moves_whole_in_steps_and_segments(
    tmp_path: Path, require_device: RequireDevice
) -> None:
    device = f"webgpu:{require_device('webgpu')[0].index}"
    folder = make_folder(tmp_path / "model", seed=4, **SIZES)
    session, profile = tmp_path / "session", tmp_path / "narrow.toml"
    profile.write_text(LIMITS)
    ended = run_process(
        *offload_arguments(folder, session, device), "--limits", str(profile), cache=tmp_path / "c"
    )
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    report = read_report(session)
    assert report["final"]["status"] == "pass"
    how = {each["name"]: each["placement"] for each in report["operators"] if each["placement"]}
    segments = "input_[01] in 2 segments of .* rows: max_binding_bytes needs 99584, the device has"
    cut = [name for name, text in how.items() if re.match(segments, text)]
    assert len([name for name in cut if name.startswith("take")]) == 2
    assert len([name for name in cut if name.startswith("matmul_transposed")]) == 2
    refined = [text for text in how.values() if text.startswith("refined into ")]
    assert refined
    assert all("max_storage_buffers needs " in text for text in refined)
    assert "max_storage_buffers needs " in ended.output + ended.errors
