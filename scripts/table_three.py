"""The paper's table III: what testing a Llama2-7B costs, step by step, beside the paper's numbers.

Without options it counts kernels and types at the full shape, which needs no weights: they are
memory that is reserved and never touched. With `--measure` it moves a model of that shape, each
extent divided by `--scale`, in a cold cache. With `--tests` it carves a test of every operator in
every entry and replays them on the target, for which no process holds all weights: they are mapped.
They are drawn by a seed and written one tensor at a time, as float32, or with `--int4` as codes of
four bits with a scale for 32 of them, which is mlc's q4f16_1, the paper's quantization.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.plan_without_weights import plan_without_weights
from tapml.cli.model_arguments import positive
from tapml.durable.files import write_json
from tapml.models.mapped_weights import BOUND
from tapml.models.tensor_file import ALIGNMENT, write_tensors
from tapml_targets.errors import InputError, TapmlError

LLAMA2_7B: Final = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
HEAD_SIZE: Final = 128
CONTEXT: Final = 64
# Six tokens of prefill and one of decoding, as in the paper.
TOKENS: Final = "5 6 7 8 9 10"
NEW_TOKENS: Final = 2
PAPER_KERNELS: Final = 456
PAPER_TYPES: Final = 18
_SEED: Final = 7
# Of the tests' tensors without weights: less than all sites have, more than one site of each.
_BUDGET: Final = "16M"
_SAID: Final = 2
# Bytes of mapped weights that may be resident.
_RESIDENT: Final = 64 << 20
_COMMAND: Final = "from tapml.cli.start import main; exit(main())"
# Of float32, as the initial weights of a Llama.
_STANDARD_DEVIATION: Final = 0.02
_MIDDLE: Final = 7
_GROUP: Final = 32
# Of codes from 0 to 14, the middle one twice as often.
_DEVIATION: Final = 4.18
EXAMPLES: Final = """\
examples:
  python scripts/table_three.py                               kernels and types at the full shape
  python scripts/table_three.py --layers 2                    the same with two layers
  python scripts/table_three.py --measure --scale 16 --layers 2 --target webgpu
  python scripts/table_three.py --measure --scale 1 --layers 32 --json     needs 27 GB of disk
  python scripts/table_three.py --tests --scale 4 --layers 8       carve and replay, weights mapped
  python scripts/table_three.py --tests --int4                     all layers: 4.2 GB of disk

exit codes: 0; 1 the model did not pass; 2 input.
"""


@dataclass(frozen=True)
class Step:
    """A row of the table: the phases of a session that it consists of, and the paper's seconds."""

    part: str
    name: str
    where: str
    phases: tuple[str, ...]
    once: bool
    paper: float


TABLE: Final = (
    Step("rooting", "model compilation", "host", ("compile kernels",), False, 40.1),
    Step("rooting", "weight loading", "target", ("load weights",), False, 1.6),
    Step("rooting", "end-to-end validation", "target", ("end-to-end validation",), False, 4.6),
    Step(
        "overhead", "model compilation", "host", ("import model", "compile reference"), True, 50.8
    ),
    Step("overhead", "weight loading", "reference", ("load model",), True, 1.6),
    Step("overhead", "test carving", "reference", ("root in PyTorch", "carve tests"), True, 5.2),
    Step("overhead", "operator validation, each", "target", ("operator validation",), False, 0.1),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, or measure; print the table."""
    options = _parse(arguments)
    try:
        shape = shape_of(options.scale, options.layers)
        if options.tests:
            found = tests(shape, options.target, options.folder, int4=options.int4)
        else:
            found = measure(shape, options.target) if options.measure else count(shape)
    except TapmlError as error:
        print(f"scripts/table_three.py: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(_lines(found)))
    return int(found.get("exit_code", 0))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/table_three.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--measure", action="store_true", help="move the model and time each step")
    kind.add_argument("--tests", action="store_true", help="carve tests and replay them, by steps")
    parser.add_argument("--int4", action="store_true", help="with --tests: weights of four bits")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="with --tests: where to work, and continue (temporary)",
    )
    parser.add_argument(
        "--scale",
        type=positive,
        default=1,
        metavar="N",
        help="divides the widths (1, 2, 4, ..., 32)",
    )
    parser.add_argument("--layers", type=positive, default=32, metavar="N", help="(32)")
    parser.add_argument("--target", default="opencl", metavar="PLATFORM", help="(opencl)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.int4 and not options.tests:
        parser.error("--int4 goes with --tests")
    return options


def shape_of(scale: int, layers: int) -> dict[str, Any]:
    """The configuration with divided widths; heads keep their size.

    Raises
    ------
    InputError
        If no whole number of heads is left.
    """
    if LLAMA2_7B["num_attention_heads"] % scale:
        raise InputError(f"--scale {scale}: expected a divisor of 32, the number of heads")
    divided = (
        "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads",
    )  # fmt: skip
    changes = {name: int(LLAMA2_7B[name]) // scale for name in divided}
    return {**LLAMA2_7B, **changes, "num_hidden_layers": layers, "head_dim": HEAD_SIZE}


def count(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Import the shape without weights; its call sites, operators and kinds of operator."""
    before = time.process_time()
    plan = plan_without_weights("LlamaForCausalLM", shape, context=CONTEXT)
    return {
        "shape": dict(shape),
        "import_cpu_seconds": round(time.process_time() - before, 1),
        "weights_gb": round(
            sum(math.prod(each.shape) * 4 for each in plan.weights.values()) / 1e9, 1
        ),
        "peak_gb": _peak_gb(resource.RUSAGE_SELF),
        **counts(plan),
        "paper": {"kernels": PAPER_KERNELS, "types": PAPER_TYPES},
    }


def counts(plan: Any) -> dict[str, Any]:
    """Call sites by entry, operators, and operators by entry.

    A kernel of the paper is a call site of a compiled model, a type an operator function.
    """
    sites = {name: len(entry.calls) for name, entry in plan.entries.items()}
    used = {
        name: len({call.operator for call in entry.calls}) for name, entry in plan.entries.items()
    }
    # The number behind a name tells shapes apart.
    kinds = {re.sub(r"_?\d+$", "", name) for name in plan.operators}
    return {
        "sites": sites,
        "operators": len(plan.operators),
        "operators_of_entries": used,
        "kinds": len(kinds),
    }


def _shapes(shape: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Configuration and shapes of the parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape)
    with torch.device("meta"):
        named = LlamaForCausalLM(config).named_parameters()
    settings = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    return settings, {name: tuple(each.shape) for name, each in named}


def write_weights(shape: Mapping[str, Any], folder: Path) -> int:
    """A checkpoint by seed, a tensor in memory at a time; bytes of weights."""
    import numpy as np

    settings, shapes = _shapes(shape)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, each in shapes.items():
        end = total + 4 * math.prod(each)
        header[name] = {"dtype": "F32", "shape": list(each), "data_offsets": [total, end]}
        total = end
    text = json.dumps(header).encode()
    # So that every tensor can be used where it is.
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, (name, each) in enumerate(shapes.items()):
            random = np.random.default_rng([_SEED, number])
            # Uniform numbers take a third of the time of normal ones.
            values = random.random(each, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(_STANDARD_DEVIATION * math.sqrt(12))
            values += 1.0 if "norm" in name else 0.0
            values.tofile(file)
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    return total


def write_packed_weights(shape: Mapping[str, Any], folder: Path) -> int:
    """The same with matrices of four bits: 15 codes around 7, a scale for 32 columns."""
    import numpy as np

    settings, shapes = _shapes(shape)
    drawn = _Drawn(shapes)
    layers = {
        name.removesuffix(".weight"): {"bits": 4, "zero": _MIDDLE}
        for name, each in shapes.items()
        if len(each) > 1
    }
    settings["quantization_config"] = {
        "quant_method": "tapml", "made_from": "int4 by seed", "layers": layers,
    }  # fmt: skip
    kinds = {name: "int32" if name.endswith(".codes") else "float32" for name in drawn}
    write_tensors(folder / "model.safetensors", drawn, kinds)
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    return sum(np.dtype(kinds[name]).itemsize * math.prod(drawn.shapes[name]) for name in drawn)


class _Drawn(Mapping[str, Any]):
    """Tensors of packed layers and norms, each drawn when it is taken."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, each in shapes.items():
            if len(each) > 1:
                path, (rows, columns) = name.removesuffix(".weight"), each
                self.shapes[f"{path}.codes"] = rows, columns // 8
                # A width that was divided may have no whole groups.
                self.shapes[f"{path}.scales"] = (
                    rows,
                    columns // _GROUP if columns % _GROUP == 0 else 1,
                )
            else:
                self.shapes[name] = each
        self._numbers = {name: number for number, name in enumerate(self.shapes)}

    def __getitem__(self, name: str) -> Any:
        import numpy as np

        random, shape = np.random.default_rng([_SEED, self._numbers[name]]), self.shapes[name]
        if name.endswith(".codes"):
            words = random.integers(1 << 32, size=shape, dtype=np.uint32)
            # A code of 15 becomes 7, so that the mean is zero.
            full = words & (words >> 1) & (words >> 2) & (words >> 3) & np.uint32(0x11111111)
            return (words ^ (full << 3)).view(np.int32)
        values = random.random(shape, np.float32)
        if name.endswith(".scales"):
            return (values + np.float32(0.5)) * np.float32(_STANDARD_DEVIATION / _DEVIATION)
        return np.float32(1) + (values - np.float32(0.5)) * np.float32(_STANDARD_DEVIATION)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def measure(shape: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Move the shape in a cold cache; the rows, and the most memory of a process."""
    with tempfile.TemporaryDirectory(prefix="tapml-table-three-") as temporary:
        folder = Path(temporary)
        (folder / "model").mkdir()
        nbytes = write_weights(shape, folder / "model")
        ended = subprocess.run(
            [
                sys.executable, "-P", "-c", _COMMAND,
                "offload", "--model", str(folder / "model"), "--target", target, "--session",
                str(folder / "session"), "--context", str(CONTEXT), "--tokens", TOKENS,
                "--new-tokens", str(NEW_TOKENS), "--strategy", "bisect", "--quiet",
            ],
            env=os.environ | {"TAPML_CACHE_DIR": str(folder / "cache")},
            check=False,
        )  # fmt: skip
        report = json.loads((folder / "session" / "report.json").read_text("utf-8"))
    return {
        "shape": dict(shape),
        "target": target,
        "weights_gb": round(nbytes / 1e9, 3),
        "peak_gb": _peak_gb(resource.RUSAGE_CHILDREN),
        "load": round(os.getloadavg()[0], 1),
        "operators": report["summary"]["operators"],
        "moved": report["summary"]["moved"],
        "rows": rows(report["phases"], report["summary"]["operators"]),
        "exit_code": ended.returncode,
    }


def tests(
    shape: Mapping[str, Any],
    target: str,
    parent: Path | None = None,
    *,
    int4: bool = False,
) -> dict[str, Any]:
    """Carve a test of every operator in every entry and replay them; seconds and memory of each.

    In a folder that is given, what is done stays done.

    Raises
    ------
    InputError
        If the folder holds the steps of another shape, target or kind of weights.
    """
    write = write_packed_weights if int4 else write_weights
    with tempfile.TemporaryDirectory(prefix="tapml-table-three-") as temporary:
        folder = parent or Path(temporary)
        (folder / "model").mkdir(parents=True, exist_ok=True)
        done = folder / "steps.json"
        asked = {"shape": dict(shape), "target": target, "int4": int4}
        found: dict[str, Any] = {**asked, "steps": []}
        if done.is_file():
            found = _kept(done, asked)
        steps = found["steps"]
        variables = os.environ | {"TAPML_CACHE_DIR": str(folder / "cache"), BOUND: str(_RESIDENT)}
        for name, command in _steps(folder, target).items():
            if any(each["step"] == name and not each["exit_code"] for each in steps):
                continue
            before = time.monotonic()
            if not command:
                found["weights_gb"] = round(write(shape, folder / "model") / 1e9, 3)
                steps.append(_step(name, before, _peak_gb(resource.RUSAGE_SELF), 0))
            else:
                steps.append(_run(name, command, variables))
            steps[-1]["load"] = round(os.getloadavg()[0], 1)
            print(json.dumps(steps[-1]), file=sys.stderr, flush=True)
            write_json(done, found)
            if steps[-1]["exit_code"]:
                break
    return {
        **found,
        "peak_gb": max(each["peak_gb"] for each in steps),
        "exit_code": steps[-1]["exit_code"],
    }


def _kept(done: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The steps that were done, if the same was asked for."""
    try:
        kept = dict(json.loads(done.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"{done} cannot be read ({error}): give an empty folder") from error
    for name, wanted in asked.items():
        if kept.get(name) != wanted:
            got = "" if name == "shape" else f" ({kept.get(name)}, not {wanted})"
            raise InputError(f"{done.parent} has another {name}{got}: give an empty folder")
    return kept


def _steps(folder: Path, target: str) -> dict[str, list[str]]:
    """The steps by name, each a command or, of the weights, nothing."""
    return {
        "weights by seed": [],
        "carve": [
            "carve", "--model", str(folder / "model"), "--out", str(folder / "suite"),
            "--context", str(CONTEXT), "--tokens", TOKENS, "--new-tokens", str(NEW_TOKENS),
            "--budget", _BUDGET, "--quiet", "--overwrite",
        ],
        "replay": ["replay", str(folder / "suite"), "--device", target],
    }  # fmt: skip


def _run(name: str, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """A command and the most memory of it and its processes together."""
    before = time.monotonic()
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND, *command],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    watched = Memory(started.pid)
    try:
        said = (started.communicate()[0] or "").strip().splitlines()[-_SAID:]
    finally:
        if started.poll() is None:
            started.terminate()
    return _step(name, before, watched.stop(), started.returncode, said)


def _step(
    name: str, before: float, peak: float, code: int, said: Sequence[str] = ()
) -> dict[str, Any]:
    seconds = round(time.monotonic() - before, 1)
    return {"step": name, "seconds": seconds, "peak_gb": peak, "exit_code": code, "said": [*said]}


class Memory:
    """The most memory of a process and its descendants together, sampled, in GB."""

    def __init__(self, process: int) -> None:
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(process,), daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """End sampling; the most that was found."""
        self._ended.set()
        self._thread.join()
        return round(self._most / 1e6, 2)

    def _sample(self, process: int) -> None:
        while not self._ended.wait(0.1):
            self._most = max(self._most, sum(map(_kilobytes, _family(process))))


def _family(process: int) -> list[int]:
    """A process and its descendants."""
    found, waiting = [], [process]
    while waiting:
        each = waiting.pop()
        found.append(each)
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                waiting += map(int, (task / "children").read_text("ascii").split())
    return found


def _kilobytes(process: int) -> int:
    """Resident memory of a process; what several share is counted once in all."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0


def rows(phases: Sequence[Mapping[str, Any]], operators: int) -> list[dict[str, Any]]:
    """The seven rows from the phases of a session's report, with shares of their sum."""
    seconds: dict[str, float] = {}
    for each in phases:
        seconds[each["name"]] = seconds.get(each["name"], 0.0) + float(each["seconds"])
    found = []
    for step in TABLE:
        took = sum(seconds.get(name, 0.0) for name in step.phases)
        found.append((step, took / operators if step.name.endswith("each") else took))
    total = sum(took for _, took in found)
    paper = sum(step.paper for step in TABLE)
    return [
        {
            "part": step.part,
            "step": step.name,
            "platform": step.where,
            "seconds": round(took, 3),
            "share": round(took / total, 4) if total else 0.0,
            "paper_seconds": step.paper,
            "paper_share": round(step.paper / paper, 4),
            "once": step.once,
        }
        for step, took in found
    ]


def _peak_gb(who: int) -> float:
    return round(resource.getrusage(who).ru_maxrss * 1024 / 1e9, 2)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    shape = found["shape"]
    yield (
        f"hidden {shape['hidden_size']}, {shape['num_hidden_layers']} layers, vocabulary "
        f"{shape['vocab_size']}: {found['weights_gb']} GB of weights, "
        f"at most {found['peak_gb']} GB in a process"
    )
    if "steps" in found:
        for each in found["steps"]:
            said = "; ".join(each["said"])
            yield f"{each['step']}: {each['seconds']} s, {each['peak_gb']} GB. {said}"
        return
    if "rows" not in found:
        sites = ", ".join(f"{name} {each}" for name, each in found["sites"].items())
        used = ", ".join(f"{name} {each}" for name, each in found["operators_of_entries"].items())
        yield f"kernels (call sites): {sites}; the paper's {PAPER_KERNELS}"
        yield (
            f"operator functions: {found['operators']} ({used}), of {found['kinds']} names; the "
            f"paper's types: {PAPER_TYPES}"
        )
        return
    yield f"{found['moved']} of {found['operators']} operators moved; load {found['load']}"
    yield "| | step | platform | share | seconds | the paper's share | seconds | O(1) |"
    yield "|---" * 8 + "|"
    for each in found["rows"]:
        yield (
            f"| {each['part']} | {each['step']} | {each['platform']} | {each['share']:.1%} | "
            f"{each['seconds']} | {each['paper_share']:.1%} | {each['paper_seconds']} | "
            f"{'yes' if each['once'] else 'no'} |"
        )


if __name__ == "__main__":
    sys.exit(main())
