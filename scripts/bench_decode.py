"""Compares a decode step of the finished plan with the sum of its kernels' times.

Five measurements take turns: the step as a package runs it (token in, logits out, the device driven
by this process), the same over a server process, the same launches enqueued back to back by a bare
pyopencl loop in a separate process, and the device's events around each kernel of a step. The bare
loop's time beyond its kernels is the driver's cost of launches. The fifth measures launches that
were all enqueued before they are released: its time beyond the kernels is the driver's own gap
between kernels, the minimum for any runtime. The wide model has as many launches and larger
kernels.
"""

from __future__ import annotations

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

from scripts.carved_model import MODEL, compile_all
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml.importing.cache import PlanCache
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_model
from tapml.models.loaded import LoadedModel
from tapml.package.in_process import open_in_process
from tapml_rpc.local import open_local
from tapml_targets import library_format
from tapml_targets.driver import DeviceDescription
from tapml_targets.opencl.discovery import prepare_environment
from tapml_targets.ranking import rank_devices
from tapml_targets.target import Target

BAR: Final = 1.2
_CLOCKS: Final = ("step", "served", "kernels", "bare", "released")
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
    """One row per model and OpenCL device, simulators excluded."""
    devices = [
        each.description
        for each in rank_devices("opencl")
        if not each.problem and each.description.device_type != "checker"
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        wide = Path(folder) / "wide-llama"
        make_wide(wide)
        for source in (MODEL, str(wide)):
            model = load_model(source)
            imported = import_model(model, cache=PlanCache())
            for device in devices:
                plan, weights = imported.plan, imported.weights
                target = Target("opencl", limits=device.limits)
                library = link_entries(plan, compile_all(compiler, plan.operators.values(), target))
                packed = Path(folder) / "library.msgpack"
                packed.write_bytes(library_format.pack(library))
                with (
                    open_in_process(device) as here,
                    open_local(device) as there,
                    PlanRunner(plan, weights, library, here) as runner,
                    PlanRunner(plan, weights, library, there) as served,
                    _bare_loop(packed, device) as peer,
                ):
                    name = f"{Path(source).name}, {device.vendor_platform}"
                    seconds = _take_turns(model, runner, served, peer)
                    rows.append(_row(name, seconds, peer.launches))
    return rows


def _take_turns(
    model: LoadedModel, runner: PlanRunner, served: PlanRunner, peer: _BareLoop
) -> dict[str, list[float]]:
    """Seconds by measurement."""
    seconds: dict[str, list[float]] = {each: [] for each in _CLOCKS}
    for each in (runner, served):
        each.reset()
    began = time.perf_counter()
    for turn in range(_WARM_UP + _MOST_TURNS):
        if turn >= _WARM_UP + _FEWEST_TURNS and time.perf_counter() - began > _SECONDS:
            break
        inputs = model.prepare_decode(5, turn)
        step = _seconds(runner, inputs)
        over_server = _seconds(served, inputs)
        _, nanoseconds = runner.run_timed("decode", inputs)
        bare, released = peer.step()
        if turn >= _WARM_UP:
            seconds["step"].append(step)
            seconds["served"].append(over_server)
            seconds["kernels"].append(nanoseconds * 1e-9)
            seconds["bare"].append(bare)
            seconds["released"].append(released)
    return seconds


def _seconds(runner: PlanRunner, inputs: Mapping[str, Any]) -> float:
    started = time.perf_counter()
    runner.run("decode", inputs)
    return time.perf_counter() - started


def _row(name: str, seconds: dict[str, list[float]], launches: int) -> dict[str, Any]:
    step, served, kernels, bare, released = (statistics.median(seconds[key]) for key in _CLOCKS)
    ratio = round(step / kernels, 2)
    return {
        "part": "decode",
        "name": name,
        "launches": launches,
        "step_ms": round(step * 1e3, 3),
        "over_a_server_ms": round(served * 1e3, 3),
        "kernels_ms": round(kernels * 1e3, 3),
        "bare_loop_ms": round(bare * 1e3, 3),
        "released_ms": round(released * 1e3, 3),
        "ratio": ratio,
        "bare_ratio": round(bare / kernels, 2),
        "released_ratio": round(released / kernels, 2),
        "at_most": BAR,
        "met": ratio <= BAR,
    }


def make_wide(folder: Path) -> None:
    """Write the wide model with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20240229)
    LlamaForCausalLM(LlamaConfig(**_WIDE)).save_pretrained(folder)


class _BareLoop:
    """The peer's process: a line of input runs a step and returns its seconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.launches = int(self._answer())

    def step(self) -> tuple[float, float]:
        """Seconds of the launches one by one, and enqueued first and then released."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        one_by_one, released = self._answer().split()
        return float(one_by_one), float(released)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare loop ended; its output is above")
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
