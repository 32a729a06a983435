"""Any torch module as a model that a session moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    import torch

    from tapml.models.recorded_module import RecordedModule
    from tapml.models.stored import Measure


def from_torch(
    module: torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, Any]] | Sequence[Mapping[int, Any] | None] | None = None,
    *,
    name: str | None = None,
    samples: Sequence[Sequence[Any] | Mapping[str, Any]] = (),
    measure: Measure = "values",
    labels: Sequence[str] = (),
) -> RecordedModule:
    """Record a torch module as a model that :meth:`tapml.OffloadSession.begin` moves.

    The module is exported at once, so that what cannot be moved is said here.
    ``model.save(folder)`` keeps it: the folder is a model for every command, and needs none of the
    module's code.

    Parameters
    ----------
    module
        Without state that survives a call. It runs in evaluation mode, in float32 or float16.
    inputs
        Positional arguments, or keyword arguments by name: tensors or arrays, also in dictionaries,
        lists and tuples. Other values, None among them, are as given in every call.
    dynamic
        Which axes of the inputs have any extent, by the argument's name or in order:
        ``{"x": {0: "batch"}}`` or ``[{0: "batch"}]``; a tensor in a dictionary is ``batch.x``.
        Axes of one name have one extent, at least 2; a :class:`torch.export.Dim` in place of a name
        brings other limits.
    name
        Of the model; that of the module's class by default.
    samples
        Further inputs to carve tests from, each like `inputs`.
    measure
        ``values`` compares every number of every output; ``classes`` and ``vectors`` compare the
        classes that the first output chooses, or its vectors.
    labels
        A name for each class.

    Raises
    ------
    InputError
        If the inputs do not fit the module, an output is no tensor, or ``torch.export`` refuses it.
    UnsupportedOperatorError
        If it has operators that cannot be imported; all are named with their lines.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> model = from_torch(net, [torch.rand(3, 4)], dynamic=[{0: "batch"}], name="small")
    >>> print(model.stored.signature, "->", *[each.name for each in model.stored.outputs])
    input float32 [batch, 4] -> result
    >>> model.save("small-model").source.name
    'small-model'
    >>> pool = torch.nn.AdaptiveMaxPool3d(2)
    >>> from_torch(pool, [torch.rand(1, 2, 5, 5, 5)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tapml_targets.errors.UnsupportedOperatorError: 'forward' uses 1 operator that cannot be ...
    """
    import torch

    from tapml.importing.exporting import export_entry
    from tapml.importing.flat_arguments import FlatModule, as_tensors, needs_flattening
    from tapml.importing.importer import descriptions_of
    from tapml.importing.recording import record_module
    from tapml.importing.translate import check_importable

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}")
    _check_kind(module)
    given, more = as_tensors(_checked(inputs)), [as_tensors(_checked(each)) for each in samples]
    flat = None
    if needs_flattening(given) or _gives_none(module, given):
        flat = FlatModule(module, given)
        given, *more = (flat.tensors(each) for each in (given, *more))
    model = record_module(
        module if flat is None else flat.train(module.training),
        given,
        dynamic,
        name=name or type(module).__name__,
        samples=more,
        measure=measure,
        labels=labels,
        names=None if flat is None else flat.names,
    )
    for description in descriptions_of(model):
        check_importable(export_entry(description))
    return model


def _check_kind(module: torch.nn.Module) -> None:
    """Raise InputError for modules that torch.export says nothing useful of."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "a module of TorchScript cannot be exported: give the torch.nn.Module that it was made "
            "of, or torch.jit.trace's input"
        )
    for path, part in module.named_modules():
        if type(part).__module__.startswith("torch.ao.nn.quantized"):
            raise InputError(
                f"{path or 'the module'} is quantized by torch.ao: give the module before that"
            )


def _checked(inputs: Any) -> Any:
    import numpy as np
    import torch

    alone = isinstance(inputs, torch.Tensor | np.ndarray | str)
    if alone or not isinstance(inputs, Sequence | Mapping):
        raise InputError(
            f"from_torch takes a list of the module's inputs, got {type(inputs).__name__}: "
            "write [x]"
        )
    return dict(inputs) if isinstance(inputs, Mapping) else list(inputs)


def _gives_none(module: Any, inputs: Sequence[Any]) -> bool:
    """Whether a part of a module's result is None; what it raises is told where it is recorded."""
    import torch
    from torch.utils import _pytree

    training = module.training
    try:
        with torch.no_grad():
            given = module.eval()(*(each.clone() for each in inputs))
    except Exception:  # the module is the user's
        return False
    finally:
        module.train(training)
    # None is no leaf of a tree where it is not asked for.
    return any(each is None for each in _pytree.tree_leaves(given, lambda each: each is None))
