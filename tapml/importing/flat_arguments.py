"""A module whose arguments and results are not tensors alone, as one of tensors.

Arguments may be dictionaries, lists and tuples of tensors, keyword arguments, and values that are
no tensors, which stay as they are given. Results that are None are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from tapml_targets.errors import InputError


class FlatModule(nn.Module):
    """Takes the tensors of a module's arguments in order, and gives those of its result by name.

    Parameters
    ----------
    module
        Without state that survives a call.
    arguments
        Positional arguments, or keyword arguments.

    Attributes
    ----------
    names
        Of the tensors: the argument's, and the way to it (``batch.x``).

    Raises
    ------
    InputError
        If there is no tensor in the arguments, or they are not those of the module.
    """

    def __init__(self, module: nn.Module, arguments: Sequence[Any] | Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        bound = _bound(module, arguments)
        leaves, self._spec = _pytree.tree_flatten_with_path((bound.args, bound.kwargs))
        self._constants = [None if isinstance(each, Tensor) else each for _, each in leaves]
        self._places = [at for at, (_, each) in enumerate(leaves) if isinstance(each, Tensor)]
        if not self._places:
            raise InputError(
                f"no input of {type(module).__name__} is a tensor: expected one at least"
            )
        positional = _positional_names(module, len(bound.args))
        self.names = [_name(leaves[at][0], positional) for at in self._places]

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The tensors of the result by name."""
        leaves = list(self._constants)
        for place, each in zip(self._places, tensors, strict=True):
            leaves[place] = each
        args, kwargs = _pytree.tree_unflatten(leaves, self._spec)
        return named_results(self.module(*args, **kwargs))

    def tensors(self, arguments: Sequence[Any] | Mapping[str, Any]) -> list[Tensor]:
        """The tensors of further arguments, which are like the first.

        Raises
        ------
        InputError
            If they have tensors in other places.
        """
        bound = _bound(self.module, arguments)
        leaves, spec = _pytree.tree_flatten((bound.args, bound.kwargs))
        found = [at for at, each in enumerate(leaves) if isinstance(each, Tensor)]
        if spec != self._spec or found != self._places:
            raise InputError(
                f"a sample has other arguments than the inputs: expected {', '.join(self.names)}"
            )
        for given, constant in zip(leaves, self._constants, strict=True):
            if not isinstance(given, Tensor) and given != constant:
                raise InputError(
                    f"a sample has {given!r} where the inputs have {constant!r}: what is no tensor "
                    "is the same in every call; make another model for it"
                )
        return [leaves[at] for at in found]


def needs_flattening(arguments: object) -> bool:
    """Whether arguments are other than a list of tensors."""
    if isinstance(arguments, Mapping):
        return True
    return isinstance(arguments, Sequence) and any(
        not isinstance(each, Tensor) for each in arguments
    )


def named_results(given: Any) -> dict[str, Any]:
    """Every part of a result by name: ``result``, or its place in tuples, lists, dictionaries."""
    named = {}
    for path, each in _pytree.tree_flatten_with_path(given)[0]:
        name = ".".join(map(str, map(_key, path))) or "result"
        if each is not None:
            named[f"result.{name}" if name[0].isdigit() else name] = each
    return named


def _bound(
    module: nn.Module, arguments: Sequence[Any] | Mapping[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(module.forward)
    try:
        if isinstance(arguments, Mapping):
            return signature.bind(**arguments)
        return signature.bind(*arguments)
    except TypeError as error:
        raise InputError(
            f"{type(module).__name__}.forward{signature} does not take these inputs: {error}"
        ) from error


def _positional_names(module: nn.Module, count: int) -> list[str]:
    """A name for each positional argument; one of ``*x`` is x.0, x.1, ..."""
    names: list[str] = []
    for each in inspect.signature(module.forward).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            names += [f"{each.name}.{at}" for at in range(count - len(names))]
        else:
            names.append(each.name)
    return names[:count]


def _name(path: Sequence[Any], positional: Sequence[str]) -> str:
    """The name of a tensor from its way: which side, which argument, and the way in that."""
    side, argument, *rest = map(_key, path)
    first = positional[argument] if side == 0 else str(argument)
    return ".".join([first, *map(str, rest)])


def _key(step: Any) -> Any:
    return getattr(step, "key", getattr(step, "idx", getattr(step, "name", "")))


def as_tensors(value: Any) -> Any:
    """Arguments with every NumPy array as a tensor."""
    import numpy as np

    return _pytree.tree_map(
        lambda each: torch.from_numpy(each.copy()) if isinstance(each, np.ndarray) else each, value
    )
