"""Loads an ONNX file: with fixed shapes, its constants folded by onnxruntime.

onnxruntime folds what depends on shapes alone, so that an importer needs no shape at run time, and
it is the root that the plan is compared with.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import nn

from tapml.models.entries import EntryModule
from tapml.models.fixed_input import FixedInput
from tapml.models.loaded import LoadedModule, OwnStep
from tapml.models.onnx_control_flow import has_control_flow, write_out_control_flow
from tapml.models.onnx_fixed import fix_inputs
from tapml.models.onnx_forms import (
    OLDEST_OPSET,
    has_others,
    is_known,
    with_defined,
    write_out_others,
)
from tapml.models.onnx_ml import without_text, write_out_ml
from tapml.models.onnx_reading import (
    AGAIN,
    MOST_NODES,
    NO_MODEL,
    check_installed,
    read_onnx,
    reading,
    settle_weights,
    widen,
)
from tapml.models.onnx_recurrent import has_recurrent, write_out_recurrent
from tapml.models.onnx_static import fold_extents
from tapml.models.stored import MODULE, Measure, ModuleTensor, StoredModule
from tapml_targets.errors import InputError, UnsupportedOperatorError

Array: TypeAlias = npt.NDArray[Any]

_OF_CODES: Final = 5e-2
# Steps are rare, and so the root of the mean of their squares is small.
_USUAL: Final = 5e-3
# The largest difference of an output, of its largest number, by operators that are in the model.
# Those of codes: a number at the border of two becomes the one or the other, and so an output moves
# by steps of its scale. Of a classifier with probabilities onnxruntime ends an iteration early.
_ALLOWED: Final = {
    "DynamicQuantizeLinear": _OF_CODES,
    "QLinearConv": _OF_CODES,
    "QLinearMatMul": _OF_CODES,
    "QuantizeLinear": _OF_CODES,
    "SVMClassifier": 1e-2,
}
_ROUNDING: Final = ("QuantizeLinear", "Round")
# Graphs inside of one another.
_DEEPEST: Final = 16
_MOST_INPUTS: Final = 256
_FLOATS: Final = ("float32", "float16")
_REMEDIES: Final = {
    "float64": "export the model with float32 inputs, or convert it to float32",
    "object": "texts have to be encoded before the model: export what follows them",
}
_DTYPES: Final = (*_FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True)
class OnnxModel(LoadedModule):
    """An ONNX model with fixed shapes.

    Attributes
    ----------
    folded
        The model (``onnx.ModelProto``) after onnxruntime folded its constants, with node names.
    original
        The same before, with all tensors in it.
    outside
        Names of the files that tensors lay in.
    """

    folded: Any = field(kw_only=True)
    original: Any = field(kw_only=True)
    outside: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def beside(self) -> tuple[str, ...]:
        """See :attr:`Loaded.beside`."""
        return self.outside

    @property
    def identity(self) -> str:
        """Everything but weights and code that the entry depends on."""
        graph = self.folded.SerializeToString(deterministic=True)
        fixed = f" {self.stored.fixed}" if self.stored.fixed else ""
        return f"{super().identity} {hashlib.sha256(graph).hexdigest()}{fixed}"

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """None in PyTorch: :mod:`tapml.importing.onnx_import` imports the graph."""
        return ()

    def own_steps(self) -> Iterator[OwnStep]:
        """The folded model beside the file, both in onnxruntime without optimization."""
        inputs = self.stored.prepare(self.samples[0][0])
        ours, own = (run_onnx(each, inputs) for each in (self.folded, self.original))
        allowed = max(map(_allowed, self.original.graph.node), default=0.0) or None
        for name, values in own.items():
            # Labels and places are whole numbers, and have no steps.
            coded = values.dtype.kind == "f" or values.dtype.itemsize == 1
            yield OwnStep.of_output(
                MODULE,
                ours[name],
                values,
                allowed=allowed if coded else None,
                usual=_USUAL if coded and allowed == _OF_CODES else None,
            )


class _SizesError(InputError):
    """The file is right, and the sizes of its inputs are refused."""


def _by_name(model: Any, given: Array | Mapping[str, Array]) -> Array | Mapping[str, Array]:
    if isinstance(given, Mapping) or len(model.graph.input) != 1:
        return given
    return {str(model.graph.input[0].name): given}


def _allowed(node: Any) -> float:
    """What :data:`_ALLOWED` has of a node."""
    if node.op_type == "SVMClassifier" and not any(e.name == "prob_a" for e in node.attribute):
        return 0.0
    return _ALLOWED.get(node.op_type, 0.0)


def load_onnx(
    path: Path, inputs: Sequence[tuple[Array | Mapping[str, Array], str]] = ()
) -> OnnxModel:
    """Load a file.

    Parameters
    ----------
    path
        The file; tensors outside of it lie beside it.
    inputs
        What to run it on, an array or arrays by name, each with what people call it; the first
        give its free sizes. If there are none, a free first axis is 1 and the numbers are by seed.

    Raises
    ------
    InputError
        If it is no valid model, reaches outside of its folder, or an input has a free size.
    SetupError
        If onnx or onnxruntime is not installed.
    """
    check_installed()
    try:
        return _load(path, inputs, branches=False)
    except _SizesError:
        if not inputs:
            raise
        return _load(path, inputs, branches=True)


def _load(
    path: Path, inputs: Sequence[tuple[Array | Mapping[str, Array], str]], *, branches: bool
) -> OnnxModel:
    """With `branches`, an input that decides a branch is fixed, and the other one is left out."""
    original, outside = read_onnx(path)
    name = path.stem
    without_text(original)
    settle_weights(original)
    if len(original.graph.input) > _MOST_INPUTS:
        raise InputError(
            f"{path} has {len(original.graph.input)} inputs: expected at most {_MOST_INPUTS}"
        )
    widened = widen(original)
    inputs = [(_by_name(original, arrays), text) for arrays, text in inputs]
    first: Any = inputs[0][0] if inputs else None
    named = first if isinstance(first, Mapping) else {}
    with reading(path):
        fixed = fix_inputs(original, named, name, branches=branches)
    if branches and not fixed:
        return _load(path, inputs, branches=False)
    if fixed:
        first = {key: each for key, each in named.items() if key not in fixed}
    ports = _fix_shapes(original, first, name)
    folded = type(original)()
    folded.CopyFrom(original)
    with reading(path):
        write_out_ml(folded)
        folded = with_defined(folded)
    folded = _written_out(_fold_as_read(folded, path), path, _probe(ports, first))
    # Of the file: onnxruntime widens what it has no half-precision kernel for.
    dtypes = {str(_dtype_of(each.data_type)) for each in original.graph.initializer}
    outputs = [ModuleTensor(each.name, _element(each, path)) for each in folded.graph.output]
    signature = StoredModule.from_json(
        StoredModule(
            name=name,
            dtype="float16" if "float16" in dtypes and "float32" not in dtypes else "float32",
            inputs=tuple(ports),
            outputs=tuple(outputs),
            measure=_MEASURE,
            labels=(),
            weights_hash=_hash(folded),
            fixed=tuple(FixedInput.of(key, value) for key, value in fixed.items()),
        ).to_json()
    )
    given = [(signature.fitted(arrays), text) for arrays, text in inputs] or _seeded(signature)
    return OnnxModel(
        name,
        {"onnx": [f"{each.domain or 'ai.onnx'} {each.version}" for each in folded.opset_import]},
        None,
        nn.Identity(),
        signature.dtype,
        1,
        signature.weights_hash,
        path,
        notes=(
            *(
                f"{key} is {value.tolist()} from now on: it decides extents, axes or a branch"
                for key, value in fixed.items()
            ),
            *(
                ("bfloat16 numbers are float32 here, which is exact for weights",)
                if widened
                else ()
            ),
            *(() if inputs else ("the model runs on numbers by seed unless given (--input)",)),
        ),
        signature=signature,
        samples=tuple(given),
        folded=folded,
        original=original,
        outside=outside,
    )


_MEASURE: Final[Measure] = "values"


def run_onnx(model: Any, inputs: Mapping[str, Array], *, hidden: bool = False) -> dict[str, Array]:
    """Outputs of a model by name in onnxruntime, nothing fused; with `hidden`, all values."""
    import onnx
    import onnxruntime

    if hidden:
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        outputs = {each.name for each in model.graph.output}
        extended.graph.output.extend(
            onnx.ValueInfoProto(name=name)
            for node in model.graph.node
            for name in node.output
            if name and name not in outputs
        )
        model = extended
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _fix_shapes(model: Any, given: Any, name: str) -> list[ModuleTensor]:
    """Write the extents of the inputs into the model."""
    values = list(model.graph.input)
    if not values:
        raise InputError(f"{name} takes no input: expected a model that computes something")
    arrays: dict[str, Any] = {}
    if given is not None:
        alone = {values[0].name: given} if len(values) == 1 else {}
        arrays = dict(given) if isinstance(given, Mapping) else alone
        if set(arrays) != {each.name for each in values}:
            names = ", ".join(each.name for each in values)
            raise InputError(f"the first inputs of {name} do not name its own: expected {names}")
    ports = []
    for value in values:
        element = _element(value, Path(name))
        dims = value.type.tensor_type.shape.dim
        found = arrays.get(value.name)
        if found is not None and np.ndim(found) != len(dims):
            raise InputError(
                f"an input of {np.ndim(found)} axes for {value.name} of {name}: expected "
                f"{len(dims)}"
            )
        for axis, dim in enumerate(dims):
            if dim.dim_value > 0:
                continue
            if found is None and axis > 0:
                free = dim.dim_param or f"axis {axis}"
                raise InputError(
                    f"input {value.name} of {name} has the free size {free!r}: give an input "
                    "with the sizes to move it for (--input x.npy)"
                )
            extent = 1 if found is None else int(np.shape(found)[axis])
            if extent < 1:
                raise InputError(f"input {value.name} of {name} is empty along axis {axis}")
            dim.Clear()
            dim.dim_value = extent
        ports.append(ModuleTensor(value.name, element, tuple(dim.dim_value for dim in dims)))
    del model.graph.value_info[:]
    return ports


def _element(value: Any, path: Path) -> str:
    """The dtype of an input or output."""
    name = str(_dtype_of(value.type.tensor_type.elem_type))
    if name not in _DTYPES:
        raise InputError(
            f"{value.name} of {path.name} has dtype {name}: expected one of {', '.join(_DTYPES)}; "
            f"{_REMEDIES.get(name, 'export the model with one of these')}"
        )
    return name


def _dtype_of(element: int) -> Any:
    import onnx

    try:
        return onnx.helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        return "none"


def _fold(model: Any, path: Path) -> Any:
    """The model with its constants folded, as onnxruntime writes it."""
    import onnx
    import onnxruntime

    _check_known(model, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    # It makes codes of numbers that the file has as they are.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    with tempfile.TemporaryDirectory() as folder, reading(path):
        file = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(file)
        # Sums of codes are whole numbers as long as no scale is in their weights.
        rounds = any(node.op_type in _ROUNDING for node in model.graph.node)
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["ConvMulFusion"] if rounds else [],
        )
        folded = onnx.load(file)
    taken: set[str] = set()
    for number, node in enumerate(folded.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return folded


def _fold_as_read(model: Any, path: Path) -> Any:
    """As :func:`_fold`; says whether the file, or the sizes that its inputs got, is refused."""
    import onnxruntime

    try:
        return _fold(model, path)
    except InputError as error:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception:  # of onnxruntime's own classes
            raise error from None
        reason = str(error).partition(NO_MODEL)[2].removesuffix(AGAIN)
        raise _SizesError(
            f"{path} does not take inputs of these sizes: {reason}; give others (--input), which "
            "each of its branches has to take, or export the branch that is needed"
        ) from error


def _probe(ports: Sequence[ModuleTensor], given: Any) -> dict[str, Array]:
    """Inputs to find the extents and dtypes of all values with: the first given, or zeros."""
    probe = {
        each.name: np.zeros(tuple(int(extent) for extent in each.shape), each.dtype)
        for each in ports
    }
    if given is not None:
        named = given if isinstance(given, Mapping) else {ports[0].name: given}
        probe |= {name: np.asarray(each, probe[name].dtype) for name, each in named.items()}
    return probe


def _written_out(model: Any, path: Path, probe: Mapping[str, Array]) -> Any:
    """The model with nodes that no importer has in other forms, from the outermost graph inwards.

    It is folded after each pass: what depends on the number of a step is a constant then.
    """

    def run(model: Any) -> dict[str, Array]:
        with reading(path, " does not run on its inputs: ", "; give others (--input)"):
            return run_onnx(model, probe, hidden=True)

    for _ in range(_DEEPEST):
        if fold_extents(model, partial(run, model)):
            model = _fold(model, path)
        loops, others = has_control_flow(model), has_others(model)
        if loops or others or has_recurrent(model):
            model = _raised(model)
        with reading(path):
            if loops or others:
                values = run(model) | dict(probe)
                if others:
                    write_out_others(model, values)
                else:
                    write_out_control_flow(model, {name: v.shape for name, v in values.items()})
            elif not write_out_recurrent(model):
                return model
            if len(model.graph.node) > MOST_NODES:
                raise InputError(
                    f"{path} has {len(model.graph.node)} nodes with its loops unrolled: expected "
                    f"at most {MOST_NODES}"
                )
        model = _fold(model, path)
    return model


def _raised(model: Any) -> Any:
    """A model of the opset that is written; itself if it cannot be converted to that."""
    import onnx

    opset = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=0)
    if opset >= OLDEST_OPSET:
        return model
    try:
        raised = onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception:  # of any class, for what it does not know
        return model
    raised.ir_version = max(raised.ir_version, 7)
    return raised


def _check_known(model: Any, path: Path) -> None:
    """Operators outside of ONNX, which no runtime here knows."""
    standard = {"", "ai.onnx"}
    for node in model.graph.node:
        if node.domain not in standard and not is_known(node):
            raise UnsupportedOperatorError(
                f"{path.name} uses {node.domain}.{node.op_type} in node {node.name or 'unnamed'!r},"
                " which is not of ONNX: export the model without it"
            )


def _hash(model: Any) -> str:
    digest = hashlib.sha256()
    for tensor in sorted(model.graph.initializer, key=lambda each: each.name):
        digest.update(hashlib.sha256(tensor.SerializeToString(deterministic=True)).digest())
    return digest.hexdigest()


def _seeded(signature: StoredModule) -> list[tuple[tuple[Array, ...], str]]:
    """Two inputs: normal numbers, or 0 and 1 for whole numbers."""
    random = np.random.default_rng(0)
    found = []
    for number in range(2):
        arrays: dict[str, Array] = {}
        for each in signature.inputs:
            shape = tuple(int(extent) for extent in each.shape)
            if each.dtype in _FLOATS:
                arrays[each.name] = random.standard_normal(shape)
            else:
                arrays[each.name] = random.integers(0, 2, shape)
        found.append((tuple(signature.prepare(arrays).values()), f"numbers by seed {number}"))
    return found
