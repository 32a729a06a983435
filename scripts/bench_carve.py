"""Time ratio of a carved run to a plain one, hashing and writing included."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.carved_model import import_shipped, reference_executor
from tapml.carving.record import carve
from tapml.execute.executor import Executor
from tapml.execute.generate import greedy
from tapml.models import LoadedModel, calibration_prompts

BAR: Final = 1.25
# Every prompt that ships with the model, several times, so that the start does not matter.
_PROMPTS: Final = 64
_REPEATS: Final = 3
_NEW_TOKENS: Final = 24
_ROUNDS: Final = 7


def measure() -> list[dict[str, Any]]:
    """Measure prefill, and decode as the time of additional tokens, plain and carved in turn."""
    model, imported = import_shipped()
    executor = reference_executor(imported)
    prompts = [p.token_ids for p in calibration_prompts(model, _PROMPTS)] * _REPEATS
    few = prompts[:_PROMPTS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite"
        cold = _seconds(lambda: _carve(model, executor, few[:8], path, 8))
        warm = _seconds(lambda: _plain(model, executor, few[:8], 8))
        prefill = _rounds(model, executor, prompts, path, 1)
        start = _rounds(model, executor, few, path, 1)
        whole = _rounds(model, executor, few, path, _NEW_TOKENS)
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    decode = [
        (more[0] - less[0], more[1] - less[1]) for more, less in zip(whole, start, strict=True)
    ]
    steps = len(few) * (_NEW_TOKENS - 1)
    return [
        _row("prefill", prefill, len(prompts)),
        _row("decode", decode, steps),
        _row("prefill and decode", whole, len(few) + steps) | {"suite_mb": round(stored / 1e6, 1)},
        {
            "part": "carve",
            "what": "the first carve of a process, 8 prompts of 8 tokens",
            "plain_ms": round(1e3 * warm, 1),
            "carved_ms": round(1e3 * cold, 1),
        },
    ]


def _row(what: str, times: Sequence[tuple[float, float]], runs: int) -> dict[str, Any]:
    ratio = statistics.median(carved / plain for plain, carved in times)
    plain = statistics.median(plain for plain, _ in times)
    carved = statistics.median(carved for _, carved in times)
    return {
        "part": "carve",
        "what": what,
        "plain_ms": round(1e3 * plain / runs, 3),
        "carved_ms": round(1e3 * carved / runs, 3),
        "ratio": round(ratio, 3),
        "bar": BAR,
        "met": ratio <= BAR,
    }


def _rounds(
    model: LoadedModel,
    executor: Executor,
    prompts: Sequence[tuple[int, ...]],
    path: Path,
    tokens: int,
) -> list[tuple[float, float]]:
    """Seconds plain and carved, in turn, after one warm-up round."""
    times: list[tuple[float, float]] = []
    for _ in range(_ROUNDS + 1):
        # Deleting the previous suite is not part of carving.
        shutil.rmtree(path, ignore_errors=True)
        plain = _seconds(lambda: _plain(model, executor, prompts, tokens))
        times.append((plain, _seconds(lambda: _carve(model, executor, prompts, path, tokens))))
    return times[1:]


def _plain(
    model: LoadedModel, executor: Executor, prompts: Sequence[tuple[int, ...]], tokens: int
) -> None:
    for prompt in prompts:
        for _ in greedy(model, executor, prompt, tokens):
            pass


def _carve(
    model: LoadedModel,
    executor: Executor,
    prompts: Sequence[tuple[int, ...]],
    path: Path,
    tokens: int,
) -> None:
    carve(model, executor, prompts, path, max_new_tokens=tokens).close()


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
