"""What a job's `optimizer` returns: an optimizer, or several in a list, tuple or dictionary.

Schedulers of the learning rate may stand among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tapml.distributed.trees import map_tree


def is_optimizer(value: Any) -> bool:
    """Whether it steps as an optimizer does; schedulers of the learning rate step too."""
    is_tree = isinstance(value, Mapping | list | tuple | type)
    return not is_tree and callable(getattr(value, "step", None)) and not _schedules(value)


def optimizers_in(made: Any) -> list[Any]:
    """All optimizers of a job, in order."""
    found: list[Any] = []
    map_tree(made, is_optimizer, found.append)
    return found


def map_optimizers(made: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every optimizer changed."""
    return map_tree(made, is_optimizer, change)


def before_steps(made: Any, call: Callable[[frozenset[int]], None]) -> list[str]:
    """Call a function before every optimizer's step; the classes of those that have no hooks.

    It gets the identities of the parameters that other optimizers step: their gradients may not be
    there yet, as those of a generator when its discriminator steps.
    """
    without = []
    optimizers = optimizers_in(made)
    parameters = [frozenset(map(id, _parameters(each))) for each in optimizers]
    for number, optimizer in enumerate(optimizers):
        hook = getattr(optimizer, "register_step_pre_hook", None)
        if hook is None:
            without.append(type(optimizer).__name__)
            continue
        others: frozenset[int] = frozenset().union(
            *(each for other, each in enumerate(parameters) if other != number)
        )
        others -= parameters[number]
        hook(lambda *_, others=others: call(others))
    return without


def _parameters(optimizer: Any) -> list[Any]:
    groups = getattr(optimizer, "param_groups", [])
    return [parameter for group in groups for parameter in group["params"]]


def _schedules(value: Any) -> bool:
    return hasattr(value, "get_last_lr") or hasattr(value, "last_epoch")
