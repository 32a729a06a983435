"""A decode step of the finished plan against the sum of its kernels' times.

Six clocks take turns: the step as a package runs it (token in, logits out, the device driven by
this process, launches that are independent of each other merged), the same with every launch its
own, the same over a server process of its own, the same launches enqueued back to back by
a bare loop of pyopencl in a process of its own, and the device's events around each kernel of a
step. What the bare loop takes beyond its kernels is what the driver asks for its launches. A sixth
clock starts when launches that were all enqueued before are let go: from there no process asks
anything of the driver, and what is left beyond the kernels is the driver's own way from one to the
next, the floor for any runtime on it. The wide model has as many launches and larger kernels.

Run it alone with ``python -m scripts.bench_decode``, or through ``scripts/bench.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.compiler.merged_launches import launch_counts
from tapml.execute.plan_runner import PlanRunner
from tapml.graph.cache import PlanCache
from tapml.graph.importer import import_model
from tapml.models.huggingface import load_model
from tapml.models.loaded import LoadedModel
from tapml_rpc.in_process import open_in_process
from tapml_rpc.local import open_local
from tapml_targets import library_format
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.opencl.discovery import prepare_environment
from tapml_targets.ranking import rank_devices
from tapml_targets.target import Target

DEMO: Final = "pydoc-llama"
BAR: Final = 1.2
_CLOCKS: Final = ("step", "apart", "served", "kernels", "apart kernels", "bare", "released")
_WARM_UP: Final = 10
_FEWEST_TURNS: Final = 20
_MOST_TURNS: Final = 200
_SECONDS: Final = 10.0
# Four layers like the demo's, wide enough that a kernel takes longer than its launch.
_WIDE: Final = {
    "vocab_size": 4000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def measure() -> list[dict[str, Any]]:
    """One row per model and OpenCL device that is no simulator."""
    devices = [
        each.description
        for each in rank_devices("opencl")
        if not each.problem and each.description.device_type != "checker"
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        wide = Path(folder) / "wide-llama"
        _make_wide(wide)
        for source in (DEMO, str(wide)):
            model = load_model(source)
            imported = import_model(model, cache=PlanCache())
            for device in devices:
                libraries = _compile(compiler, imported.plan.operators.values(), device)
                library = link_entries(imported.plan, libraries, merge=True)
                unmerged = link_entries(imported.plan, libraries)
                packed = Path(folder) / "library.msgpack"
                packed.write_bytes(library_format.pack(library))
                plan, weights = imported.plan, imported.weights
                with (
                    open_in_process(device) as here,
                    open_local(device) as there,
                    PlanRunner(plan, weights, library, here) as runner,
                    PlanRunner(plan, weights, unmerged, here) as apart,
                    PlanRunner(plan, weights, library, there) as served,
                    _bare_loop(packed, device) as peer,
                ):
                    name = f"{Path(source).name}, {device.vendor_platform}"
                    seconds = _take_turns(model, runner, apart, served, peer)
                    launches = (launch_counts(unmerged)["decode"], peer.launches)
                    rows.append(_row(name, seconds, launches))
    return rows


def _take_turns(
    model: LoadedModel,
    runner: PlanRunner,
    apart: PlanRunner,
    served: PlanRunner,
    peer: _BareLoop,
) -> dict[str, list[float]]:
    """Seconds of a step in its ways, of its kernels, and of the bare loop's two."""
    seconds: dict[str, list[float]] = {each: [] for each in _CLOCKS}
    for each in (runner, apart, served):
        each.reset()
    began = time.perf_counter()
    for turn in range(_WARM_UP + _MOST_TURNS):
        if turn >= _WARM_UP + _FEWEST_TURNS and time.perf_counter() - began > _SECONDS:
            break
        inputs = model.prepare_decode(5, turn)
        step = _seconds(runner, inputs)
        unmerged = _seconds(apart, inputs)
        over_server = _seconds(served, inputs)
        _, nanoseconds = runner.run_timed("decode", inputs)
        _, apart_nanoseconds = apart.run_timed("decode", inputs)
        bare, released = peer.step()
        if turn >= _WARM_UP:
            seconds["step"].append(step)
            seconds["apart"].append(unmerged)
            seconds["served"].append(over_server)
            seconds["kernels"].append(nanoseconds * 1e-9)
            seconds["apart kernels"].append(apart_nanoseconds * 1e-9)
            seconds["bare"].append(bare)
            seconds["released"].append(released)
    return seconds


def _seconds(runner: PlanRunner, inputs: Mapping[str, Any]) -> float:
    started = time.perf_counter()
    runner.run("decode", inputs)
    return time.perf_counter() - started


def _row(name: str, seconds: dict[str, list[float]], launches: tuple[int, int]) -> dict[str, Any]:
    step, apart, served, kernels, apart_kernels, bare, released = (
        statistics.median(seconds[key]) for key in _CLOCKS
    )
    ratio = round(step / kernels, 2)
    return {
        "part": "decode",
        "name": name,
        "launches": launches[1],
        "step_ms": round(step * 1e3, 3),
        "over_a_server_ms": round(served * 1e3, 3),
        "kernels_ms": round(kernels * 1e3, 3),
        "launches_apart": launches[0],
        "step_apart_ms": round(apart * 1e3, 3),
        "kernels_apart_ms": round(apart_kernels * 1e3, 3),
        "bare_loop_ms": round(bare * 1e3, 3),
        "released_ms": round(released * 1e3, 3),
        "ratio": ratio,
        "ratio_apart": round(apart / apart_kernels, 2),
        "bare_ratio": round(bare / kernels, 2),
        "released_ratio": round(released / kernels, 2),
        "at_most": BAR,
        "met": ratio <= BAR,
    }


def _compile(compiler: Compiler, operators: Any, device: DeviceDescription) -> dict[str, Library]:
    libraries = {}
    for operator, library in compiler.compile_all(
        operators, Target("opencl", limits=device.limits)
    ):
        if isinstance(library, CompileError):
            raise library
        libraries[operator.name] = library
    return libraries


def _make_wide(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20240229)
    LlamaForCausalLM(LlamaConfig(**_WIDE)).save_pretrained(folder)


class _BareLoop:
    """The peer's process: a line in, a step, the seconds out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.launches = int(self._answer())

    def step(self) -> tuple[float, float]:
        """Seconds of the launches one by one, and of the same enqueued first and then let go."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        one_by_one, released = self._answer().split()
        return float(one_by_one), float(released)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare loop ended; what it said is above")
        return line


@contextmanager
def _bare_loop(library: Path, device: DeviceDescription) -> Iterator[_BareLoop]:
    spec = f"{device.platform}:{device.index}"
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.bare_launches", str(library), spec],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=prepare_environment(dict(os.environ)),
        cwd=Path(__file__).resolve().parent.parent,
        text=True,
    )
    try:
        yield _BareLoop(process)
    finally:
        process.communicate()


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
