"""A large suite, carved and replayed in little memory: peak bytes of all processes, curves, rates.

    python3 scripts/bench_size.py                  6 GB of tensors (about half an hour)
    python3 scripts/bench_size.py --gigabytes 0.5

A random Llama whose attention is wide and whose weights are small, prompts of its whole context
with tokens of their own: nothing in the suite is stored twice by luck. The real commands run, each
with all the processes it starts. Memory is proportional set size: anonymous and shared pages are
counted once however many processes see them; pages of files, which the system takes back when it
needs them, are listed apart.
"""

from __future__ import annotations

import argparse
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

sys.path[0] = str(Path(__file__).resolve().parent.parent)

CONTEXT: Final = 512
BAR_BYTES: Final = 1 << 30
_SEED: Final = 20240229
_SAMPLE_SECONDS: Final = 0.25
_VOCABULARY: Final = 512
# What one prompt of the whole context stores with this model, measured.
_BYTES_PER_PROMPT: Final = 217e6
# The oracle keeps what it found beside the suite: up to one and a half times the outputs.
_FREE_FACTOR: Final = 2.6


@dataclass(frozen=True)
class Measured:
    """One command: how long it took, its peak and how memory went, in bytes."""

    seconds: float
    peak: int
    peak_files: int
    curve: tuple[int, ...]
    exit_code: int
    output: str


def measure(gigabytes: float = 6.0, device: str = "opencl") -> list[dict[str, Any]]:
    """Carve and replay a suite of so many gigabytes; rows for ``scripts/bench.py``."""
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
    """Prompts of the whole context but for what is generated, no two alike."""
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
                own, files = _memory(process.pid)
                curve.append(own)
                peak_files = max(peak_files, files)
                time.sleep(_SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    seconds = time.monotonic() - started
    return Measured(seconds, max(curve), peak_files, tuple(curve), process.returncode, text)


def _memory(root: int) -> tuple[int, int]:
    """Proportional bytes of a process and its descendants: anonymous and shared, and of files."""
    own = files = 0
    for process in _family(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        sizes = {
            line.split(":")[0]: int(line.split()[1]) << 10
            for line in text.splitlines()
            if line.startswith("Pss_")
        }
        own += sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)
        files += sizes.get("Pss_File", 0)
    return own, files


def _family(root: int) -> list[int]:
    """A process and its descendants."""
    family = [root]
    for process in family:
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                family += [int(child) for child in thread.read_text().split()]
            except OSError:
                continue
    return family


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


def main() -> int:
    """Measure and print; 1 if the bar is missed."""
    from scripts.bench import print_table

    parser = argparse.ArgumentParser(description="Carve and replay a large suite.")
    parser.add_argument("--gigabytes", type=float, default=6.0)
    parser.add_argument("--device", default="opencl")
    options = parser.parse_args()
    rows = measure(options.gigabytes, options.device)
    print_table(rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
