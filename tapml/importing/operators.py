"""Collects the operators of a plan: one entry per structurally different function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tvm

from tapml.importing.function_text import (
    structural_hash,
    structurally_equal,
    tensors_first,
    to_json,
    to_script,
    with_parameter_names,
    without_attributes,
)
from tapml.importing.symbolic import dtype_name, shape_of
from tapml.plan.graph_plan import Body, Operator, OutputKind
from tapml.plan.naming import UniqueNames, readable
from tapml.plan.torch_subgraph import TorchForm, TorchSubgraph
from tapml_targets.dtype import dtype
from tapml_targets.errors import UnsupportedOperatorError
from tapml_targets.library import Parameter

_SELECTING: Final = ("argmax", "argmin", "argsort", "topk", "sort")


@dataclass
class _Collected:
    name: str
    hash: str
    function: Any
    variants: dict[str, Any]
    reads: int
    body: Body | None
    kinds: list[OutputKind] = field(default_factory=list)
    torch_forms: dict[tuple[TorchSubgraph | None, str], list[str]] = field(default_factory=dict)


class OperatorTable:
    """Merges functions by structural hash, across call sites and entries.

    Parameters
    ----------
    taken
        Reserved names: those of the entries, because both are called by name.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._by_hash: dict[str, _Collected] = {}
        self._by_name: dict[str, _Collected] = {}
        self._names = UniqueNames("_")
        for name in taken:
            self._names.take(name)

    def add(
        self,
        function: Any,
        name: str,
        *,
        reads: int,
        variants: dict[str, Any],
        make_body: Callable[[Sequence[str], Sequence[str]], Body | None],
    ) -> str:
        """Add a function and return its operator's name.

        Parameters
        ----------
        function
            A PrimFunc: input tensors, then output tensors; integers anywhere.
        name
            TVM's name of it.
        reads
            Number of input tensors.
        variants
            PrimFuncs for other platform kinds.
        make_body
            Called with the names of inputs and outputs if the operator is new.
        """
        function = tensors_first(without_attributes(function))
        variants = {
            kind: tensors_first(without_attributes(variant)) for kind, variant in variants.items()
        }
        key = _key(function, variants)
        known = self._by_hash.get(key)
        if known is not None:
            if known.reads != reads or not structurally_equal(known.function, function):
                raise UnsupportedOperatorError(
                    f"operators {known.name!r} and {name!r} have the same hash ({key}) but differ"
                )
            return known.name
        unique = self._names.take(readable(name))
        tensors = [p for p in function.params if not tvm.ir.is_prim_var(p)]
        names = parameter_names(reads, len(tensors) - reads)
        integers = [str(p.name) for p in function.params if tvm.ir.is_prim_var(p)]
        all_names = [*names, *integers]
        collected = _Collected(
            name=unique,
            hash=key,
            function=with_parameter_names(function, all_names),
            variants={k: with_parameter_names(v, all_names) for k, v in variants.items()},
            reads=reads,
            body=make_body(names[:reads], names[reads:]),
            kinds=_kinds(name, [dtype_name(p.ty.dtype) for p in tensors], reads),
        )
        self._by_hash[key] = collected
        self._by_name[unique] = collected
        return unique

    def mark_state(self, name: str, output: int) -> None:
        """Note that an operator's output replaces state at one of its call sites."""
        self._by_name[name].kinds[output] = "state"

    def add_torch_form(
        self, name: str, site: str, subgraph: TorchSubgraph | None, reason: str = ""
    ) -> None:
        """Add the torch sub-graph of a call site, or the reason why it has none."""
        self._by_name[name].torch_forms.setdefault((subgraph, reason), []).append(site)

    def writes(self, name: str) -> int:
        """How many tensors an operator writes."""
        return len(self._by_name[name].kinds)

    def function(self, name: str) -> Any:
        """The PrimFunc of an operator, with the parameter names of the plan."""
        return self._by_name[name].function

    def finish(self) -> dict[str, Operator]:
        """All operators, in the order of their first use."""
        return {name: _operator(collected) for name, collected in self._by_name.items()}


def parameter_names(reads: int, writes: int) -> list[str]:
    """Names of an operator's tensors, in calling order."""
    return [
        *(f"input_{index}" for index in range(reads)),
        *(f"output_{index}" for index in range(writes)),
    ]


def _key(function: Any, variants: dict[str, Any]) -> str:
    key = structural_hash(function)
    if variants:
        parts = [key, *(f"{kind}:{structural_hash(f)}" for kind, f in sorted(variants.items()))]
        key = hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
    return key


def _kinds(name: str, data_types: Sequence[str], reads: int) -> list[OutputKind]:
    """Kinds of a function's outputs; its first `reads` tensors are inputs."""
    reads_floats = any(dtype(each).is_float for each in data_types[:reads])
    selects = any(word.startswith(_SELECTING) for word in name.split("_"))
    kinds: list[OutputKind] = []
    for data_type in data_types[reads:]:
        if data_type == "bool":
            kinds.append("predicate")
        elif dtype(data_type).is_float:
            kinds.append("value")
        elif selects:
            kinds.append("index")
        else:
            # An integer computed from reals may be on either side of a rounding boundary.
            kinds.append("code" if reads_floats else "value")
    return kinds


def _operator(collected: _Collected) -> Operator:
    function = collected.function
    parameters = []
    symbols = []
    for index, variable in enumerate(function.params):
        if tvm.ir.is_prim_var(variable):
            symbols.append(str(variable.name))
            continue
        parameters.append(
            Parameter(
                name=str(variable.name),
                shape=shape_of(variable.ty.shape),
                dtype=dtype_name(variable.ty.dtype),
                role="input" if index < collected.reads else "output",
            )
        )
    return Operator(
        name=collected.name,
        hash=collected.hash,
        parameters=tuple(parameters),
        symbols=tuple(symbols),
        function=to_json(function, collected.name),
        script=to_script(function, collected.name),
        output_kinds=tuple(collected.kinds),
        body=collected.body,
        variants={k: to_json(v, collected.name) for k, v in collected.variants.items()},
        torch_forms=tuple(
            TorchForm(tuple(sites), subgraph, reason)
            for (subgraph, reason), sites in collected.torch_forms.items()
        ),
    )
