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
    inputs: Sequence[Any],
    dynamic: Mapping[str, Mapping[int, Any]] | Sequence[Mapping[int, Any] | None] | None = None,
    *,
    name: str | None = None,
    samples: Sequence[Sequence[Any]] = (),
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
        Positional arguments: tensors or arrays.
    dynamic
        Which axes of the inputs have any extent, by the argument's name or in order:
        ``{"x": {0: "batch"}}`` or ``[{0: "batch"}]``. Axes of one name have one extent, at least 2;
        a :class:`torch.export.Dim` in place of a name brings other limits.
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
    from tapml.importing.importer import descriptions_of
    from tapml.importing.recording import record_module
    from tapml.importing.translate import check_importable

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}")
    model = record_module(
        module,
        _tensors(inputs),
        dynamic,
        name=name or type(module).__name__,
        samples=[_tensors(each) for each in samples],
        measure=measure,
        labels=labels,
    )
    for description in descriptions_of(model):
        check_importable(export_entry(description))
    return model


def _tensors(inputs: object) -> list[Any]:
    import numpy as np
    import torch

    if isinstance(inputs, torch.Tensor | np.ndarray) or not isinstance(inputs, Sequence):
        raise InputError(
            f"from_torch takes a list of the module's inputs, got {type(inputs).__name__}: "
            "write [x]"
        )
    found = []
    for at, each in enumerate(inputs):
        if not isinstance(each, torch.Tensor | np.ndarray):
            raise InputError(
                f"input {at} is {type(each).__name__}: expected a tensor or an array; close over "
                "other arguments in the module"
            )
        found.append(each if isinstance(each, torch.Tensor) else torch.from_numpy(each.copy()))
    return found
