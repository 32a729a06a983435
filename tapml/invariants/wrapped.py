"""The functions of PyTorch whose calls a recording wraps in one and the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
import torch.nn.init
import torch.optim.lr_scheduler

from tapml.invariants.environment import EAGER_VARIABLE
from tapml.invariants.record import CLIPS, LOAD, LOAD_OPTIMIZER
from tapml_targets.errors import SetupError

COLLECTIVES: Final = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]

TRAIN: Final = "torch.nn.Module.train"

# Functions whose calls are recorded: (the holder's name, the attribute, the recorded name).
NOTED: Final = (
    *(("torch.nn.utils", name.rpartition(".")[2], name) for name in CLIPS),
    ("torch.nn.Module", "train", TRAIN),
    ("torch.nn.Module", "load_state_dict", LOAD),
    ("torch.optim.Optimizer", "load_state_dict", LOAD_OPTIMIZER),
    ("torch.nn.Module", "to", "torch.nn.Module.to"),
    ("torch.amp.GradScaler", "scale", "torch.amp.GradScaler.scale"),
    ("torch.amp.GradScaler", "unscale_", "torch.amp.GradScaler.unscale_"),
    ("torch.amp.GradScaler", "step", "torch.amp.GradScaler.step"),
    ("torch.amp.GradScaler", "update", "torch.amp.GradScaler.update"),
)

# Some have methods of their own.
SCHEDULERS: Final = sorted(
    (name, method)
    for name, kind in vars(torch.optim.lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)
    for method in ("step", "load_state_dict")
    if method in vars(kind)
)

# They call functions for every tensor of a model.
MUTED: Final = (LOAD, LOAD_OPTIMIZER, "torch.nn.Module.to")

INITIALISERS: Final = tuple(
    name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")
)

# The argument that names the other rank of a message.
PEER: Final = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}


def compiles(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.compile`` in a recorded run. Raises SetupError unless nothing is compiled."""
    if os.environ.get(EAGER_VARIABLE) == "1":
        return original(*args, **kwargs)
    raise SetupError(
        "the script uses torch.compile, whose code a recording cannot see; use --eager to "
        "record it without compilation"
    )


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of a module run compiled code."""
    if os.environ.get(EAGER_VARIABLE) == "1":
        return False
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def refuse_compiled(model: torch.nn.Module) -> NoReturn:
    """Raise SetupError about a model that was compiled before the recording began."""
    raise SetupError(
        f"{type(getattr(model, '_orig_mod', model)).__name__} was compiled by torch.compile, whose "
        f"code a recording cannot see; train the model uncompiled, or set {EAGER_VARIABLE}=1"
    )


def holder_of(name: str) -> Any:
    """The module or class of PyTorch that a name below ``torch`` is of."""
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found
