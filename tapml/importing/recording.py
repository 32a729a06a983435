"""Records any torch module: its graph, its signature, and what it gives for its samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from tapml.importing.exporting import EntryDescription, export_program
from tapml.importing.fixed_results import decided_results
from tapml.importing.flat_arguments import named_results
from tapml.models.program_checks import check_extents, check_random, check_results
from tapml.models.program_text import read_program, write_program
from tapml.models.recorded_module import RecordedModule, recorded, to_array
from tapml.models.stored import Measure, ModuleTensor, StoredModule, SymbolRange
from tapml_targets.errors import InputError

# The compiler's fusion fails for an extent that may be 1 or more.
_SHORTEST: Final = 2
_NO_LIMIT: Final = 1 << 31
_FLOATS: Final = ("float32", "float16")
_DTYPES: Final = (*_FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")

Axes: TypeAlias = Mapping[int, Any]
Dynamic: TypeAlias = Mapping[str, Axes] | Sequence[Axes | None] | None


def record_module(
    module: nn.Module,
    inputs: Sequence[Tensor],
    dynamic: Dynamic,
    *,
    name: str,
    samples: Sequence[Sequence[Tensor]],
    measure: Measure,
    labels: Sequence[str],
    names: Sequence[str] | None = None,
) -> RecordedModule:
    """Record a module; see :func:`tapml.from_torch`.

    Raises
    ------
    InputError
        If inputs do not fit, an output is no tensor, or ``torch.export`` refuses the module.
    """
    names = _argument_names(module, len(inputs)) if names is None else list(names)
    for each, tensor in zip(names, inputs, strict=True):
        if 0 in tensor.shape:
            raise InputError(
                f"{each} is of shape {list(tensor.shape)}: expected extents of at least 1"
            )
    axes = _axes(dynamic, names, inputs)
    dims: dict[str, Any] = {}
    shapes = [
        {axis: dims.setdefault(_symbol(each), _dim(each)) for axis, each in some.items()}
        for some in axes
    ]
    ports = tuple(
        ModuleTensor(
            each,
            _dtype(tensor),
            tuple(
                _symbol(some[axis]) if axis in some else size
                for axis, size in enumerate(tensor.shape)
            ),
        )
        for each, tensor, some in zip(names, inputs, axes, strict=True)
    )
    with _evaluation(module):
        outputs = _named_outputs(_call(module, inputs, name))
        signature = StoredModule.from_json(
            StoredModule(
                name=name,
                dtype=_model_dtype(module, inputs, name),
                inputs=ports,
                outputs=tuple(ModuleTensor(key, _dtype(each)) for key, each in outputs),
                measure=measure,
                labels=tuple(labels),
                weights_hash="-",
                symbols=tuple(map(_range, dims.values())),
            ).to_json()
        )
        given = [[to_array(each) for each in some] for some in (inputs, *samples)]
        fitted = [tuple(signature.prepare(each).values()) for each in given]
        expected = [
            _named_outputs(_call(module, [torch.from_numpy(each) for each in some], name))
            for some in fitted
        ]
        _check_repeats(outputs, expected[0], name)
        program = export_program(
            EntryDescription(
                name, module, tuple(inputs), (), dynamic_shapes=_by_argument(module, shapes)
            )
        )
    check_random(program, name)
    check_results(program, [key for key, _ in outputs], name)
    check_extents(program, name)
    # What is moved is what a folder would give.
    program = read_program(write_program(program), program.state_dict, program.constants)
    return recorded(
        signature,
        program,
        tuple((each, f"sample {number}") for number, each in enumerate(fitted)),
        tuple(tuple(to_array(each) for _, each in some) for some in expected),
        Path(),
    )


@contextmanager
def _evaluation(module: nn.Module) -> Iterator[None]:
    training = module.training
    try:
        with torch.no_grad():
            module.eval()
            yield
    finally:
        module.train(training)


def _call(module: nn.Module, inputs: Sequence[Tensor], name: str) -> Any:
    try:
        with decided_results():
            return module(*(each.clone() for each in inputs))
    except Exception as error:  # the module is the user's, and raises what it wants
        reason = str(error).strip().splitlines() or [""]
        shown = ", ".join(f"{_dtype(each)} {list(each.shape)}" for each in inputs)
        raise InputError(
            f"{name} does not take the inputs {shown}: {type(error).__name__}: {reason[0][:200]}"
        ) from error


def _check_repeats(
    first: Sequence[tuple[str, Tensor]], again: Sequence[tuple[str, Tensor]], name: str
) -> None:
    """A second run of the first inputs gives the same shapes, and numbers that are close."""
    for (key, one), (_, other) in zip(first, again, strict=True):
        same = one.shape == other.shape and torch.allclose(
            one.double(), other.double(), rtol=1e-2, atol=1e-3, equal_nan=True
        )
        if not same:
            raise InputError(
                f"output {key} of {name} differs between two runs of the same inputs: a model has "
                "no random numbers and no state that it changes"
            )


def _by_argument(module: nn.Module, shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes as ``torch.export`` takes them: those of an argument ``*x`` are one tuple."""
    kinds = [each.kind for each in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    before = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:before], tuple(shapes[before:]))


def _argument_names(module: nn.Module, count: int) -> list[str]:
    """The names of the first positional arguments; an argument ``*x`` gives x.0, x.1, ..."""
    names: list[str] = []
    for each in inspect.signature(module.forward).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            names += [f"{each.name}.{at}" for at in range(count - len(names))]
        elif each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            names.append(each.name)
    if not 0 < count <= len(names):
        raise InputError(
            f"{count} inputs for {type(module).__name__}: expected tensors for "
            f"{', '.join(names) or 'at least one argument'}"
        )
    return names[:count]


def _axes(dynamic: Dynamic, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Axes]:
    """For each input, the symbols of its axes."""
    if isinstance(dynamic, Mapping):
        if unknown := set(dynamic) - set(names):
            raise InputError(f"dynamic names {min(unknown)!r}: expected of {', '.join(names)}")
        found = [dynamic.get(each) or {} for each in names]
    else:
        found = [each or {} for each in dynamic or ()]
    if len(found) > len(names):
        raise InputError(f"dynamic has {len(found)} items: expected one for each of {len(names)}")
    found += [{}] * (len(names) - len(found))
    for name, tensor, some in zip(names, inputs, found, strict=True):
        for axis, each in some.items():
            if type(axis) is not int or not 0 <= axis < tensor.ndim:
                raise InputError(
                    f"dynamic names axis {axis!r} of {name}: expected 0 to {tensor.ndim - 1}"
                )
            if not _symbol(each).isidentifier():
                raise InputError(
                    f"dynamic has {each!r} for axis {axis} of {name}: expected a name such as "
                    '"batch", or a torch.export.Dim'
                )
    return found


def _symbol(dimension: Any) -> str:
    return dimension if isinstance(dimension, str) else str(getattr(dimension, "__name__", ""))


def _dim(dimension: Any) -> Any:
    if not isinstance(dimension, str):
        return dimension
    return torch.export.Dim(dimension, min=_SHORTEST)


def _range(dimension: Any) -> SymbolRange:
    largest = int(min(getattr(dimension, "max", _NO_LIMIT), _NO_LIMIT))
    least = max(int(getattr(dimension, "min", _SHORTEST)), _SHORTEST)
    return SymbolRange(dimension.__name__, least, None if largest == _NO_LIMIT else largest)


def _dtype(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        remedy = "; convert it first (module.float())" if tensor.is_floating_point() else ""
        raise InputError(f"a tensor has dtype {name}: expected one of {', '.join(_DTYPES)}{remedy}")
    return name


def _model_dtype(module: nn.Module, inputs: Sequence[Tensor], name: str) -> str:
    """The dtype of the weights, or of the inputs of a module without weights."""
    tensors = (*module.parameters(), *module.buffers(), *inputs)
    found = {_dtype(each) for each in tensors if each.is_floating_point()}
    if len(found) > 1 or not found <= set(_FLOATS):
        raise InputError(
            f"{name} computes in {', '.join(sorted(found))}: expected float32 or float16, the same "
            "for weights and inputs; convert it first (module.float())"
        )
    return next(iter(found), "float32")


def _named_outputs(given: Any) -> list[tuple[str, Tensor]]:
    """Every tensor of a result: ``result``, or its place in tuples, lists and dictionaries."""
    named = named_results(given)
    for name, each in named.items():
        if not isinstance(each, Tensor):
            raise InputError(
                f"output {name} is {type(each).__name__}: expected a tensor; return tensors alone, "
                "or a tuple, list or dictionary of them"
            )
    if not named:
        raise InputError("the module returns nothing: expected at least one tensor")
    return list(named.items())
