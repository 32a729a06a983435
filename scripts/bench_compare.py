"""The comparator of `tapml compare`, and whole comparisons of small models on two backends."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.processes import children_processor_seconds
from tapml.backends.child import JOBS
from tapml.comparing.run import compare
from tapml.comparing.verdicts import Thresholds, Truth, judge
from tapml.isolate.pool import Pool
from tests.comparing.small_cnn import make_images, write_cnn

INSTANCES: Final = 5_000
CLASSES: Final = 1_000
REPEATS: Final = 5
# Paper: under 5 minutes with two GPUs.
PAIR_BAR_SECONDS: Final = 60.0
COMPARATOR_BAR_SECONDS: Final = 1.0
_PAIRS: Final = (
    ("onnxruntime", "onnxruntime:disabled"),
    ("onnxruntime", "openvino"),
    ("onnxruntime", "onnx-reference"),
    ("onnxruntime", "tvm"),
    ("openvino", "onnx-reference"),
)


def measure() -> list[dict[str, Any]]:
    """Both, in CPU seconds. Each comparison starts new processes."""
    return [_comparator(), _whole()]


def _comparator() -> dict[str, Any]:
    random = np.random.default_rng(0)
    one = random.dirichlet(np.full(CLASSES, 0.1), INSTANCES).astype(np.float32)
    other = one * (1 + random.normal(0, 1e-3, one.shape)).astype(np.float32)
    truth = Truth("classification", random.integers(0, CLASSES, INSTANCES))
    took = []
    for _ in range(REPEATS):
        before = time.process_time()
        judge({"y": one}, {"y": other}, truth, Thresholds())
        took.append(time.process_time() - before)
    return _row(f"comparator, {INSTANCES:,} x {CLASSES:,}", took, COMPARATOR_BAR_SECONDS)


def _whole() -> dict[str, Any]:
    took = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_cnn(Path(folder))
        for pair in _PAIRS:
            with Pool(JOBS) as pool:
                compare(model, pair, make_images(), pool=pool)
                took.append(children_processor_seconds())
    return _row("end to end, a model and a pair", took, PAIR_BAR_SECONDS)


def _row(name: str, took: list[float], bar: float) -> dict[str, Any]:
    return {
        "part": "compare",
        "name": name,
        "median": round(statistics.median(took), 3),
        "seconds": round(max(took), 3),
        "at_most": bar,
        "met": statistics.median(took) <= bar,
    }
