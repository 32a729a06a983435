"""What a module is to a recording: its API, its parts, and whether it is a model."""

from __future__ import annotations

import functools

import torch


def is_model(module: torch.nn.Module) -> bool:
    """Whether it trains or holds parameters by itself."""
    # A parametrization has the parameter that it computes another one from.
    part = type(module).__module__.startswith("torch.nn.utils.")
    return not part and next(module.parameters(), None) is not None


def parts_of_module(module: torch.nn.Module) -> set[str]:
    """The APIs of a module's parts; lists and dictionaries are not called themselves."""
    found: set[str] = set()
    for part in module._modules.values():
        if isinstance(part, torch.nn.ModuleList | torch.nn.ModuleDict):
            found |= parts_of_module(part)
        elif part is not None:
            found.add(module_name(part))
    return found


def module_name(module: torch.nn.Module) -> str:
    """The API of a module's forward call: its class."""
    return _api_of(type(module))  # type: ignore[arg-type]  # mypy takes the hash of its instances


@functools.lru_cache(maxsize=1024)
def _api_of(kind: type[torch.nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}.forward"
