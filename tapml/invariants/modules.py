"""What a module is to a recording: its API, its parts, and whether it is a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch


def is_model(module: torch.nn.Module) -> bool:
    """Whether it trains or holds parameters by itself."""
    # A parametrization has the parameter that it computes another one from.
    part = type(module).__module__.startswith("torch.nn.utils.")
    return not part and (_trains_near(module) or next(module.parameters(), None) is not None)


def _trains_near(module: torch.nn.Module) -> bool:
    """Whether it or a part of it has a parameter: looked up in each step, without a walk."""
    near = [module, *(each for each in module._modules.values() if each is not None)]
    return any(value is not None for part in near for value in part._parameters.values())


def trains(models: Sequence[torch.nn.Module], held: Sequence[torch.Tensor]) -> bool:
    """Whether the model with the first of these parameters is in training mode.

    One that has not run yet, as of another fold, is about to train.
    """
    for model in models if held else ():
        if any(each is held[0] for each in model.parameters()):
            return model.training
    return bool(held)


def parts_of_module(module: torch.nn.Module) -> tuple[str, ...]:
    """The APIs of a module's parts, sorted; lists and dictionaries are not called themselves."""
    # A watched run asks in every step.
    return _apis_of(frozenset(_kinds(module)))


def _kinds(module: torch.nn.Module) -> list[type[torch.nn.Module]]:
    found: list[type[torch.nn.Module]] = []
    for part in module._modules.values():
        if isinstance(part, _HOLDERS):
            found += _kinds(part)
        elif part is not None:
            found.append(type(part))
    return found


_HOLDERS: Final = (torch.nn.ModuleList, torch.nn.ModuleDict)


@functools.lru_cache(maxsize=1024)
def _apis_of(kinds: frozenset[type[torch.nn.Module]]) -> tuple[str, ...]:
    # mypy takes the hash of their instances.
    return tuple(sorted(_api_of(each) for each in kinds))  # type: ignore[arg-type]


def module_name(module: torch.nn.Module) -> str:
    """The API of a module's forward call: its class."""
    return _api_of(type(module))  # type: ignore[arg-type]  # mypy takes the hash of its instances


@functools.lru_cache(maxsize=1024)
def _api_of(kind: type[torch.nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}.forward"
