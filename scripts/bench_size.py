"""Carves and replays a large suite in little memory: peak bytes of all processes, and rates.

    python3 scripts/bench.py --part size                     6 GB of tensors (about half an hour)
    python3 scripts/bench.py --part size --gigabytes 0.5

The model is a random Llama with wide attention and small weights; prompts fill its context with
different tokens, so that no tensors are equal by chance. The real commands run, with all their
processes. Memory is proportional set size: anonymous and shared pages count once in all; pages of
files, which the system reclaims on demand, are listed separately.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.processes import family, memory, own_bytes

CONTEXT: Final = 512
BAR_BYTES: Final = 1 << 30
_SEED: Final = 20240229
_SAMPLE_SECONDS: Final = 0.25
_VOCABULARY: Final = 512
# Bytes that one prompt of full context stores with this model, measured.
_BYTES_PER_PROMPT: Final = 217e6
# The oracle stores its results beside the suite: up to one and a half times the outputs.
_FREE_FACTOR: Final = 2.6


@dataclass(frozen=True)
class Measured:
    """One command: seconds, peak bytes, memory over time, and its output."""

    seconds: float
    peak: int
    peak_files: int
    curve: tuple[int, ...]
    exit_code: int
    output: str


def measure(gigabytes: float = 6.0, device: str = "opencl") -> list[dict[str, Any]]:
    """Carve and replay a suite of `gigabytes`."""
    with tempfile.TemporaryDirectory(prefix="suite-size-") as scratch:
        folder = Path(scratch)
        free = shutil.disk_usage(folder).free
        needed = gigabytes * 1e9 * _FREE_FACTOR
        if free < needed:
            raise SystemExit(
                f"{folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed: "
                "set TMPDIR to a larger disk or take fewer --gigabytes"
            )
        weights = make_model(folder / "model")
        count = max(1, round(gigabytes * 1e9 / _BYTES_PER_PROMPT))
        suite = folder / "suite"
        carved = watch(
            folder / "cache",
            "carve", "--model", str(folder / "model"), "--context", str(CONTEXT),
            "--out", str(suite), "--new-tokens", "2", "--quiet", *token_arguments(count),
        )  # fmt: skip
        stored = sum(file.stat().st_size for file in suite.rglob("*") if file.is_file())
        replayed = watch(folder / "cache", "replay", str(suite), "--device", device, "--json")
        verdicts = json.loads(replayed.output)
    tests = sum(len(each["tests"]) for each in verdicts["operators"])
    passed = sum(each["counts"]["pass"] for each in verdicts["operators"])
    return [
        _row("carve", carved, stored, weights) | {"tests": tests},
        _row("replay", replayed, stored, weights) | {"tests": tests, "passed": passed},
    ]


def make_model(folder: Path) -> int:
    """Write a Llama folder with random weights; return their bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(_SEED)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def token_arguments(count: int) -> list[str]:
    """Different prompts that fill the context except for the generated tokens."""
    numbers = random.Random(_SEED)  # noqa: S311
    arguments = []
    for _ in range(count):
        tokens = [numbers.randrange(2, _VOCABULARY) for _ in range(CONTEXT - 2)]
        arguments += ["--tokens", " ".join(map(str, tokens))]
    return arguments


def watch(cache: Path, *arguments: str) -> Measured:
    """Run a ``tapml`` command and follow the memory of all its processes."""
    started = time.monotonic()
    curve: list[int] = []
    peak_files = 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tapml.cli.main", *arguments],
            env={**os.environ, "TAPML_CACHE_DIR": str(cache)},
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
        try:
            while process.poll() is None:
                members = family(process.pid)
                curve.append(sum(map(own_bytes, members)))
                files = sum(memory(member).get("Pss_File", 0) for member in members)
                peak_files = max(peak_files, files)
                time.sleep(_SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    seconds = time.monotonic() - started
    return Measured(seconds, max(curve), peak_files, tuple(curve), process.returncode, text)


def _row(what: str, measured: Measured, stored: int, weights: int) -> dict[str, Any]:
    over = measured.peak - weights
    return {
        "part": "size",
        "what": what,
        "suite_mb": round(stored / 1e6),
        "peak_mb": round(measured.peak / 1e6),
        "over_weights_mb": round(over / 1e6),
        "files_mb": round(measured.peak_files / 1e6),
        "mb_per_s": round(stored / 1e6 / measured.seconds, 1),
        "bar_mb": round(BAR_BYTES / 1e6),
        "met": over <= BAR_BYTES and measured.exit_code == 0,
    }
