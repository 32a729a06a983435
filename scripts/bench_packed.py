"""Compares a decode step of int4 weights with that of the same model's float weights.

Both plans run in turns on one OpenCL device, in this process. The model is wide enough that weights
are most of what a step reads. Bytes are those of all weights on the device.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from scripts.bench_decode import make_wide
from scripts.carved_model import compile_all
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.models.loaded import LoadedModel
from tapml.package.in_process import open_in_process
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.dtype import dtype
from tapml_targets.ranking import default_device
from tapml_targets.target import Target

SLOWEST: Final = 1.0
"""Of int4's step over the floats' step."""
LARGEST: Final = 0.35
"""Of int4's weights over float32's."""
_WARM_UP: Final = 5
_TURNS: Final = 60


def measure() -> list[dict[str, Any]]:
    """Two rows: time of a step, and bytes of the weights."""
    device = default_device("opencl")
    target = Target("opencl", limits=device.limits)
    seconds: dict[str, list[float]] = {"": [], "int4": []}
    nbytes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler, ExitStack() as stack:
        make_wide(Path(folder) / "wide-llama")
        runners: dict[str, tuple[LoadedModel, PlanRunner]] = {}
        for kind in seconds:
            model = load_any(Path(folder) / "wide-llama", quantize=kind)
            assert isinstance(model, LoadedModel)
            imported = import_model(model)
            library = link_entries(
                imported.plan, compile_all(compiler, imported.plan.operators.values(), target)
            )
            here = stack.enter_context(open_in_process(device))
            runner = stack.enter_context(PlanRunner(imported.plan, imported.weights, library, here))
            runner.reset()
            runners[kind] = model, runner
            nbytes[kind] = weight_bytes(imported.plan)
        for turn in range(_WARM_UP + _TURNS):
            for kind, (model, runner) in runners.items():
                inputs = model.prepare_decode(5, turn)
                started = time.perf_counter()
                runner.run("decode", inputs)
                if turn >= _WARM_UP:
                    seconds[kind].append(time.perf_counter() - started)
    floats, packed = (statistics.median(seconds[kind]) for kind in ("", "int4"))
    name = f"wide-llama, {device.vendor_platform}"
    slower, smaller = round(packed / floats, 2), round(nbytes["int4"] / nbytes[""], 3)
    return [
        {
            "part": "packed",
            "name": f"{name}: decode step",
            "float32": f"{floats * 1e3:.2f} ms",
            "int4": f"{packed * 1e3:.2f} ms",
            "ratio": slower,
            "at_most": SLOWEST,
            "met": slower <= SLOWEST,
        },
        {
            "part": "packed",
            "name": f"{name}: weights on the device",
            "float32": f"{nbytes[''] / 1e6:.1f} MB",
            "int4": f"{nbytes['int4'] / 1e6:.1f} MB",
            "ratio": smaller,
            "at_most": LARGEST,
            "met": smaller <= LARGEST,
        },
    ]


def weight_bytes(plan: GraphPlan) -> int:
    """Of all weights of a plan."""
    return sum(
        math.prod(each.shape) * dtype(each.dtype).bits // 8 for each in plan.weights.values()
    )
