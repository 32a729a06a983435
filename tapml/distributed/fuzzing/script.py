"""A finding as one script that needs PyTorch (and the engine's library), and no tapml."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tapml.distributed import engines
from tapml.distributed.engine import find_engine
from tapml.distributed.results import RunResult
from tapml.distributed.runner import serving_limits
from tapml_targets.errors import InputError

TRAINING: Final = ("distribute", "shard_optimizer")
SERVING: Final = ("serve",)
"""An engine's functions that a script calls."""
_TRAINS: Final = "It trains on one process and on {world}, and compares the weights after a step."
_SERVES: Final = (
    "It trains on one process, serves from one device and from {world}, and compares what they say."
)
_HEAD: Final = '''"""{title}

{reason}
{does}
"""

'''
_MAIN: Final = '''

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing

JOB = sys.modules[__name__]
WORLD = {world}
OPTIONS = {options!r}


def start(rank, world, folder):
    torch.set_num_threads(1)
    meeting = "file://" + str(Path(folder, "meeting" + str(world)))
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    return model(), batch()


def train_one(_, folder):
    network, whole = start(0, 1, folder)
    step(network, whole, optimizer(network))
    torch.save(network.state_dict(), Path(folder, "one.pt"))


def train_rank(rank, folder):
    network, whole = start(rank, WORLD, folder)
    rows = len(whole["score"]) // WORLD
    part = whole
    if {splits}:
        part = {{name: each[rank * rows : (rank + 1) * rows] for name, each in whole.items()}}
    wrapped = distribute(network, JOB, rank, WORLD, **OPTIONS)
    made = optimizer(wrapped)
    if "shard_optimizer" in globals():
        made, _ = shard_optimizer(made, wrapped)
    step(wrapped, part, made)
    state = {{name.removeprefix("module."): each for name, each in wrapped.state_dict().items()}}
    for name, wanted in torch.load(Path(folder, "one.pt")).items():
        if name in state and wanted.is_floating_point():
            scale = wanted.abs().max().clamp(min=1e-30)
            for start_of, local in parts_of(state[name].detach()):
                ends = zip(start_of, local.shape)
                like = wanted[tuple(slice(begin, begin + size) for begin, size in ends)]
                difference = float((local - like).abs().max() / scale) if local.numel() else 0.0
                if not difference <= 1e-5:
                    print(f"rank {{rank}}: {{name}} is off by {{difference:.3g}}", flush=True)
                    Path(folder, f"wrong{{rank}}").touch()
    dist.barrier()


def parts_of(tensor):
    """The local parts of a tensor, and where each begins in the whole."""
    if hasattr(tensor, "local_shards"):
        return [(each.metadata.shard_offsets, each.tensor) for each in tensor.local_shards()]
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return [([0] * whole.ndim, whole)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_one, (folder,))
        torch.multiprocessing.spawn(train_rank, (folder,), WORLD)
        wrong = bool(list(Path(folder).glob("wrong*")))
    print("different" if wrong else "equal")
    sys.exit(wrong)
'''
_MAIN_OF_SERVING: Final = """

import copy
import sys

WORLD = {world}
OPTIONS = {options!r}
LIMIT = {limit!r}


def note(outputs, name):
    def hook(module, inputs, output):
        if isinstance(output, torch.Tensor):
            outputs[name] = output

    return hook


def main():
    torch.manual_seed(0)
    network, whole = model(), batch()
    step(network, whole, optimizer(network))
    network.eval()
    said = []
    for world in (0, WORLD):
        served = serve(copy.deepcopy(network), world, **OPTIONS)
        said.append({{}})
        for name, module in served.named_modules():
            module.register_forward_hook(note(said[-1], name))
        with torch.no_grad():
            served(*[whole[name] for name in INPUTS])
    one, many = said
    wrong = False
    for name, wanted in one.items():
        if name in many:
            scale = wanted.abs().max().clamp(min=1e-30)
            difference = float((many[name] - wanted).abs().max() / scale)
            if not difference <= LIMIT:
                print(f"the output of {{name or 'the model'}} is off by {{difference:.3g}}")
                wrong = True
    print("different" if wrong else "equal")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
"""


def script_of(job: str, result: RunResult, patch: str = "") -> str:
    """The text of the script for a generated job and a finding.

    Its exit code is 1 where ranks and one process differ or a rank fails, else 0.

    Raises
    ------
    InputError
        If the engine's ranks are no Python file.
    """
    setting = result.setting
    said = [f"{result.outcome}: {result.reason}", result.mistake]
    # Its own docstring goes: the script has one.
    body = ast.parse(job).body[0].end_lineno or 0
    text = "\n".join(job.splitlines()[body:]).strip("\n")
    engine = find_engine(setting.engine)
    served = engine.served(setting)
    head = _HEAD.format(
        title=f"{setting.name} against one process.",
        reason="\n".join(each[:1].upper() + each[1:] + "." for each in said if each),
        does=(_TRAINS if served is None else _SERVES).format(world=setting.world),
    )
    entries: tuple[str, ...] = TRAINING
    if served is None:
        splits = engine.settings.SPLITS
        main = _MAIN.format(world=setting.world, options=setting.options, splits=splits)
    else:
        entries, limit = SERVING, serving_limits(served, setting.world).base
        main = _MAIN_OF_SERVING.format(world=setting.world, options=setting.options, limit=limit)
    # The patch comes before the engine's imports, as in a run.
    parts = [head + text, patch, engine_source(setting.engine, entries)]
    return "\n\n\n".join(each.strip("\n") for each in parts if each) + main


def engine_source(name: str, entries: tuple[str, ...] = TRAINING) -> str:
    """The engine's functions of these names and what they use, without tapml's modules."""
    statements = list(_statements(f"{find_engine(name).package}.ranks"))
    named = {each: statement for statement in statements for each in _defined(statement)}
    used = set().union(*(_reached(each, named) for each in entries))
    kept = [
        statement
        for statement in statements
        if isinstance(statement, ast.Import | ast.ImportFrom)
        or any(named[each] is statement and each in used for each in _defined(statement))
    ]
    for statement in kept:
        _forget_annotations(statement)
    return "\n\n".join(ast.unparse(each) for each in kept)


def _statements(module: str) -> Iterator[ast.stmt]:
    """A module's statements, those of other engines' modules in place of their imports."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise InputError(f"{module} is no Python file, so it cannot be part of a script")
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and _is_ours(statement):
            if (statement.module or "").startswith(f"{engines.__name__}."):
                yield from _statements(str(statement.module))
        elif not (isinstance(statement, ast.Import) and _is_ours(statement)):
            yield statement


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _reached(name: str, named: dict[str, ast.stmt]) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each in named and each not in reached:
            reached.add(each)
            waiting += [node.id for node in ast.walk(named[each]) if isinstance(node, ast.Name)]
    return reached


def _is_ours(statement: ast.Import | ast.ImportFrom) -> bool:
    modules = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    modules += [each.name for each in statement.names]
    return any(each.partition(".")[0] in ("tapml", "__future__") for each in modules)


def _forget_annotations(statement: ast.stmt) -> None:
    """Annotations name what only type checkers import."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs):
                argument.annotation = None
            for more in (node.args.vararg, node.args.kwarg):
                if more is not None:
                    more.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("object", ast.Load())
