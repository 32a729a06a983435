"""Imports a decoder of mlc-llm: its definition builds Relax, with a plain cache in its hands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import torch
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.exporter import Exporter

from tapml.importing.donation import with_donations
from tapml.importing.entry_import import add_state, bounds_of, flattener_for, with_signature
from tapml.importing.flatten import FunctionTensor
from tapml.importing.guides import NamedGuide
from tapml.importing.imported import ImportedModel
from tapml.importing.lowering import lower
from tapml.importing.mlc_cache import PlainCache, cache_request, check_cache
from tapml.importing.operators import OperatorTable
from tapml.importing.relax_function import ENTRY, operation_name, with_main
from tapml.importing.translate import NodeNames
from tapml.importing.weights import WeightTable, to_numpy
from tapml.models.entries import SYMBOL, EntryModule, state_shapes
from tapml.models.inputs import DECODE, MODEL_INPUTS, SHORTEST_PREFILL
from tapml.models.mlc_model import MlcModel
from tapml.models.mlc_source import PACKAGE, names_of_older_tvm
from tapml.plan.graph_plan import Entry, GraphPlan, Origin, TensorSpecification
from tapml.plan.validation import check_plan
from tapml_targets.errors import TapmlError, UnsupportedOperatorError

Array = npt.NDArray[Any]
_VOCABULARY: Final = "vocab_size"


def import_mlc(model: MlcModel) -> ImportedModel:
    """Import a model as a plan with the entries ``prefill`` and ``decode``.

    Raises
    ------
    UnsupportedOperatorError
        If its definition cannot be built with a plain cache, or not be lowered.
    """
    entry_modules = model.entry_modules()
    table, weights = OperatorTable(each.name for each in entry_modules), WeightTable()
    tensors = model.tensors()
    entries: dict[str, Entry] = {}
    state: dict[str, TensorSpecification] = {}
    for described in entry_modules:
        built = _build(model, described)
        after = {each.output_index: each.name for each in described.state}
        lowered = lower(built.module, described.name, after)
        guide = NamedGuide(built.origins, _Names(built.origins), lowered)
        flattener = flattener_for(described.name, lowered, table, weights, guide)
        parameters = list(lowered.main.params)
        kept = {each.input_index: each.name for each in described.state}
        count = len(described.input_names)
        functions: dict[Any, FunctionTensor] = {}
        for index, parameter in enumerate(parameters):
            if index < count:
                name = kept.get(index, described.input_names[index])
                functions[parameter] = FunctionTensor(name, "state" if index in kept else "input")
            else:
                own = built.parameters[index - count]
                name = weights.parameter(own, tensors[own])
                functions[parameter] = FunctionTensor(name, "weight")
        flat, outputs = flattener.flatten(lowered.main, functions, bounds_of(lowered.main))
        entry = with_donations(with_signature(flat, outputs, after, table), table)
        entries[described.name] = entry
        for binding in entry.state:
            add_state(state, binding.state, entry)
    plan = GraphPlan(
        name=model.name,
        operators=table.finish(),
        entries=entries,
        weights=dict(weights.specifications),
        state=state,
        metadata={"tvm": tvm.__version__, "torch": torch.__version__},
    )
    check_plan(plan)
    return ImportedModel(plan, weights.arrays, mlc_entries(model))


@dataclass(frozen=True)
class MlcEntry:
    """An entry with the same entry of the folder's class in PyTorch, which its plan is rooted in.

    Only outputs and state have a counterpart there.
    """

    described: EntryModule

    @property
    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Name, input and output of every state."""
        return tuple((s.name, s.input_index, s.output_index) for s in self.described.state)

    def run(
        self, entry: Entry, tensors: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[Array]]:
        """No value inside, and the outputs."""
        given = (torch.tensor(tensors[name]) for name in self.described.input_names)
        with torch.no_grad():
            outputs = self.described.module(*given)
        return {}, [to_numpy(each)[0] for each in outputs]


def mlc_entries(model: MlcModel) -> dict[str, MlcEntry]:
    """What roots a plan of the model, from the cache as well."""
    return {each.name: MlcEntry(each) for each in model.entry_modules()}


@dataclass(frozen=True)
class _Built:
    """A Relax module with its function ``main``, names of its weights, and origins by variable."""

    module: Any
    parameters: tuple[str, ...]
    origins: dict[str, Origin]


class _Names(NodeNames):
    """Variables are their own nodes: their names survive lowering."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        super().__init__([], {})
        self._origins = origins

    def node(self, variable: str) -> str | None:
        """The variable, if it is the definition's."""
        return variable if variable in self._origins else None

    def value(self, variable: str) -> str:
        """The name of the value that a variable becomes."""
        # TVM's string is no plain one, which is all that a plan's file holds.
        return "".join(variable) if variable in self._origins else "value."


def _build(model: MlcModel, described: EntryModule) -> _Built:
    single = described.name == DECODE
    with names_of_older_tvm():
        module, configuration = model.definition()
        cache_class = importlib.import_module(f"{PACKAGE}.nn").PagedKVCache
        request = cache_request(module, configuration, cache_class, model.context_length)
        shapes = state_shapes(model.cache, model.context_length)
        check_cache(request, shapes)
        tokens: int | str = 1 if single else SYMBOL
        context = model.context_length
        specifications = {
            "token_ids": spec.Tensor([1, tokens], "int32"),
            "position_ids": spec.Tensor([1, tokens], "int32"),
            "cache_rows": spec.Tensor([context], "int32"),
            "attention_mask": spec.Tensor([1, 1, tokens, context], model.dtype),
        }
        ordered = [specifications[name] for name in MODEL_INPUTS]
        ordered += [spec.Tensor(list(shape), model.dtype) for shape in shapes.values()]

        def run(ids: Any, positions: Any, rows: Any, mask: Any, *stored: Any) -> Any:
            cache = PlainCache(
                request,
                positions._expr,
                rows._expr,
                mask._expr,
                [each._expr for each in stored],
                dtype=model.dtype,
                single=single,
            )
            flat = nn.op.reshape(ids, (ids.shape[1],))
            embedded = module.embed(flat)
            width = embedded.shape[-1]
            embedded = nn.op.reshape(embedded, (1, ids.shape[1], width))
            logits = module.batch_forward(embedded, cache)
            if logits.dtype != model.dtype:
                logits = logits.astype(model.dtype)
            return (logits, *(nn.Tensor(_expr=each) for each in cache.tensors))

        method = spec.MethodSpec(run, list(described.input_names), ordered, "plain", "none")
        try:
            with _traced(module, model.mlc.folder) as origins:
                built, parameters, others = Exporter(debug=False).build(
                    spec.ModuleSpec(module, [ENTRY], [method])
                )
            built = _with_vocabulary(built, model.vocabulary)
        except TapmlError:
            raise
        except Exception as error:  # a definition raises errors of any class
            reason = " ".join((str(error).strip() or type(error).__name__).split())
            raise UnsupportedOperatorError(
                f"mlc-llm's {model.model_type} cannot be built with a plain cache: "
                f"{type(error).__name__}: {reason[:300]}"
            ) from error
    if others:
        raise UnsupportedOperatorError(
            f"mlc-llm's {model.model_type} needs code outside of its definition, which is not "
            "imported"
        )
    main = built[ENTRY]
    if not single:
        main = main.with_attr("tir_var_lower_bound", {SYMBOL: SHORTEST_PREFILL})
        main = main.with_attr("tir_var_upper_bound", {SYMBOL: model.context_length})
    return _Built(with_main(built, main), tuple(name for name, _ in parameters), origins)


def _with_vocabulary(module: Any, vocabulary: int) -> Any:
    """The extent that definitions leave free becomes a number."""
    free = relax.analysis.defined_symbolic_vars(module[ENTRY])
    if _VOCABULARY not in {str(each.name) for each in free}:
        return module
    return relax.transform.BindSymbolicVars({_VOCABULARY: vocabulary})(module)


@contextmanager
def _traced(module: Any, folder: Path) -> Iterator[dict[str, Origin]]:
    """Within it, every variable that is emitted gets the module and the line that it comes from."""
    paths = {id(part): name for name, part in _named_modules(module)}
    origins: dict[str, Origin] = {}
    stack: list[str] = [""]
    own_emit, own_call = relax.BlockBuilder.emit, nn.Module.__call__

    def emit(builder: Any, expression: Any, name_hint: str = "") -> Any:
        variable = own_emit(builder, _bounded(expression), name_hint)
        name = str(variable.name)
        origins.setdefault(
            name, Origin(stack[-1], _line(folder), operation_name(expression) or "relax", name)
        )
        return variable

    def call(part: Any, *arguments: Any, **named: Any) -> Any:
        stack.append(paths.get(id(part), stack[-1]))
        try:
            return own_call(part, *arguments, **named)
        finally:
            stack.pop()

    relax.BlockBuilder.emit, nn.Module.__call__ = emit, call
    try:
        yield origins
    finally:
        relax.BlockBuilder.emit, nn.Module.__call__ = own_emit, own_call


def _bounded(expression: Any) -> Any:
    """A gather that stays inside whatever the index: TVM's default reads outside."""
    if operation_name(expression) == "relax.take" and str(expression.attrs.mode) == "fast":
        return relax.op.take(*expression.args, axis=expression.attrs.axis, mode="clip")
    return expression


def _named_modules(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    yield prefix, module
    numbered = isinstance(module, nn.ModuleList)
    items: Iterable[tuple[Any, Any]] = enumerate(module) if numbered else vars(module).items()
    for name, part in items:
        if isinstance(part, nn.Module | nn.ModuleList):
            yield from _named_modules(part, f"{prefix}.{name}".lstrip("."))


def _line(folder: Path) -> str:
    """The innermost line of the definition, ``file.py:line``."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{folder}/"):
            return f"{Path(path).relative_to(folder)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
