"""Runs torch.export and its decompositions so that the nodes keep their stack traces."""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)

from tapml.importing.branches import both_branches
from tapml.importing.complex_pairs import real_pairs
from tapml.importing.fixed_results import decided_results
from tapml.importing.loop_trials import check_loops
from tapml.importing.masked_rows import MaskedRows
from tapml.importing.origins import origins_of, strip_prefix
from tapml.importing.picked_rows import Loops
from tapml.importing.repeated_layers import decompose
from tapml.importing.resampling import resample_by_constants
from tapml.importing.taken_branches import TakenBranches, no_warning_asks
from tapml.importing.zero_products import keep_odd_products
from tapml.plan.graph_plan import Origin
from tapml_targets.errors import InputError, TapmlError, UnsupportedOperatorError

_PARAMETER_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# Of extents that an assertion is tried for.
_MOST_TRIED: Final = 1 << 14
# Where a module is, in what torch.export raises.
_CALL: Final = re.compile(r'File "([^"]+)", line (\d+), in ')
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class EntryDescription:
    """One entry to export; :class:`tapml.models.EntryModule` has the same fields.

    Attributes
    ----------
    example_inputs
        Positional tensors.
    input_names, output_names
        In the order of arguments and results; None numbers the outputs.
    dynamic_shapes
        As ``torch.export.export`` takes it.
    state
        (name, input index, output index) of every tensor that survives a run.
    prefix
        Path of the model inside `module`.
    program
        What ``torch.export.export`` gave, if the module was exported before.
    takes_branches
        Whether branches on numbers may be those of the example inputs
        (:mod:`tapml.importing.taken_branches`): of a class that its user does not write.
    """

    name: str
    module: torch.nn.Module
    example_inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...] | None = None
    dynamic_shapes: Any = None
    state: tuple[tuple[str, int, int], ...] = ()
    prefix: str = ""
    program: torch.export.ExportedProgram | None = None
    takes_branches: bool = False


@dataclass(frozen=True)
class ExportedEntry:
    """An entry as an FX graph in core ATen operations.

    Attributes
    ----------
    description
        Its description; the example inputs are without data, on the device ``meta``.
    program
        The exported program, decomposed.
    origins
        By FX node name.
    parameters
        Tensors of the model, by placeholder.
    parameter_names
        Their names in the model, by placeholder.
    symbols
        The caller's name of a shape symbol, by torch's.
    written_out
        Whether operations were written out (:mod:`tapml.importing.written_out`).
    branches
        Lines whose branches are those of the example inputs
        (:mod:`tapml.importing.taken_branches`).
    """

    description: EntryDescription
    program: torch.export.ExportedProgram
    origins: dict[str, Origin]
    parameters: dict[str, torch.Tensor]
    parameter_names: dict[str, str]
    symbols: dict[str, str] = field(default_factory=dict)
    written_out: bool = False
    branches: tuple[str, ...] = ()

    @property
    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Name, input and output of every tensor that survives a run."""
        return self.description.state


def export_entry(description: EntryDescription) -> ExportedEntry:
    """Export a module.

    Raises
    ------
    InputError
            If torch.export refuses the module; the message ends with the first line of its error.
    UnsupportedOperatorError
            If the module modifies its buffers or inputs in place.
    """
    for index, example in enumerate(description.example_inputs):
        if not isinstance(example, torch.Tensor):
            raise InputError(
                f"input {index} of {description.name!r} is {type(example).__name__}: expected a "
                "torch tensor; close over other arguments in the module"
            )
    with _exporting(description.name):
        branches: tuple[str, ...] = ()
        replaced: set[Any] = set()
        if description.program is not None:
            program = description.program
        else:
            program, branches, replaced = _export(description)
        program, written = decompose(program)
        resampled = resample_by_constants(program)
    _settle_extents(program.graph_module)
    _sort_largest(program.graph_module)
    _fill_empty(program.graph_module)
    keep_odd_products(program.graph_module)
    _fill_with_infinity(program.graph_module)
    _leave_out_assertions(program.graph_module, description.name)
    _leave_out_empty(program.graph_module)
    real_pairs(program.graph_module)
    origins = origins_of(program.graph.nodes, description.prefix)
    _refuse_mutations(program, origins, description.name)
    state = {**program.state_dict, **program.constants}
    parameters, names = {}, {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _PARAMETER_KINDS and spec.target is not None:
            parameters[spec.arg.name] = state[spec.target]
            names[spec.arg.name] = strip_prefix(spec.target, description.prefix)
    # Among the examples is the empty state: what is kept of them are shapes and dtypes.
    program.example_inputs = None
    shapes = tuple(each.to("meta") for each in description.example_inputs)
    described = replace(description, example_inputs=shapes)
    symbols = _symbols(program, description)
    return ExportedEntry(
        described,
        program,
        origins,
        parameters,
        names,
        symbols,
        bool(written) or bool(replaced) or resampled,
        branches,
    )


def export_program(description: EntryDescription) -> torch.export.ExportedProgram:
    """What ``torch.export.export`` gives; raises InputError as :func:`export_entry`."""
    with _exporting(description.name):
        return _export(description)[0]


def _export(
    description: EntryDescription,
) -> tuple[torch.export.ExportedProgram, tuple[str, ...], set[Any]]:
    """The program, lines of branches that were taken, and functions that had another's place."""
    without_values = _masks_are_taken(), _values_decide_nothing(), no_warning_asks()
    # A graph that is refused is printed there, line by line.
    with ExitStack() as stack, redirect_stderr(io.StringIO()):
        for each in without_values:
            stack.enter_context(each)
        replaced = stack.enter_context(decided_results(exported=True))
        program, branches = _export_of_rows(description)
    both_branches(program.graph_module)
    return program, branches, replaced


def _export_of_rows(
    description: EntryDescription,
) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """As it is; with all rows in their place if it picks some, and branches as they are taken."""
    refused: Exception | None = None
    try:
        program = _export_of_any_length(description)
    except (GuardOnDataDependentSymNode, DataDependentOutputException) as error:
        refused = error
    except Exception:
        taken = _export_of_taken_branches(description)
        if taken is None:
            raise
        return taken
    if refused is None and not any(map(_picks_rows, program.graph.nodes)):
        asks = any(map(_has_extent_of_numbers, program.graph.nodes))
        taken = _export_of_taken_branches(description) if asks else None
        return taken or (program, ())
    try:
        loops = Loops() if description.takes_branches else None
        with MaskedRows(loops).of(description.module):
            of_all_rows = _export_of_any_length(description)
        if loops is not None:
            check_loops(description.module, description.example_inputs, loops)
        return of_all_rows, ()
    except Exception as error:
        if refused is None:
            if not isinstance(error, InputError):
                return program, ()
            refused = error
        taken = _export_of_taken_branches(description)
        if taken is None:
            raise (error if isinstance(error, InputError) else refused) from error
        return taken


def _export_of_taken_branches(
    description: EntryDescription,
) -> tuple[torch.export.ExportedProgram, tuple[str, ...]] | None:
    """With the branches that its example inputs take; None if that is refused too."""
    if not description.takes_branches:
        return None
    # A decoder's next token is another one: what a mask picks there differs from step to step.
    any_length = bool(description.state) or any(map(bool, _flat_shapes(description.dynamic_shapes)))
    module, inputs = description.module, description.example_inputs
    for as_run, picks in product((False, True), repeat=2):
        branches, loops = TakenBranches(), Loops()
        rows = MaskedRows(loops).of(module) if picks else nullcontext()
        try:
            with rows, branches.of(module, inputs, any_length=any_length, as_run=as_run):
                program = _export_of_any_length(description)
            check_loops(module, inputs, loops)
        except Exception:  # noqa: S112 - the first refusal says most
            continue
        return program, tuple(dict.fromkeys(branches.places))
    return None


def _picks_rows(node: torch.fx.Node) -> bool:
    """Whether how much a node gives depends on the numbers of a mask."""
    name = str(node.target)
    if node.op != "call_function" or not name.startswith("aten."):
        return False
    indices = node.args[1] if name == "aten.index.Tensor" and len(node.args) > 1 else ()
    masks = (each for each in indices if isinstance(each, torch.fx.Node))  # type: ignore[union-attr]
    picks = (
        "aten.nonzero", "aten.where.default", "aten.masked_select", "aten._unique", "aten.unique"
    )  # fmt: skip
    return name.startswith(picks) or any(
        each.meta["val"].dtype is torch.bool for each in masks if "val" in each.meta
    )


def _has_extent_of_numbers(node: torch.fx.Node) -> bool:
    """Whether numbers of a tensor say how much a node gives, as ``shapes.tolist()``."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and bool(free_unbacked_symbols(value))


def _export_of_any_length(description: EntryDescription) -> torch.export.ExportedProgram:
    export = partial(
        torch.export.export,
        description.module,
        description.example_inputs,
        dynamic_shapes=description.dynamic_shapes,
        strict=False,
    )
    try:
        return export()
    except Exception as error:  # of a class whose module takes a second to import
        if getattr(getattr(error, "error_type", None), "name", "") != "CONSTRAINT_VIOLATION":
            raise
        # It refuses what it cannot prove: here every length is tried.
        program = export(prefer_deferred_runtime_asserts_over_guards=True)
        if not all(map(_always_holds, _assertions_of_lengths(program.graph_module))):
            raise
        return program


@contextmanager
def _masks_are_taken() -> Iterator[None]:
    """``nn.Transformer`` without its look at a mask's numbers, which tells whether it is causal.

    What it finds is a hint for the kernels of attention: the mask is taken without it too.
    """
    from torch.nn.modules import transformer as transformer_module

    transformer: Any = transformer_module
    found = transformer._detect_is_causal_mask

    def hinted(_mask: Any, is_causal: bool | None = None, _size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = hinted
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = found


@contextmanager
def _values_decide_nothing() -> Iterator[None]:
    """Distributions do not look at their arguments."""
    from torch.distributions import Distribution

    found = Distribution._validate_args
    Distribution._validate_args = False
    try:
        yield
    finally:
        Distribution._validate_args = found


def _assertions_of_lengths(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Assertions whose truth follows from the extents of the inputs."""
    return [
        node
        for node in module.graph.nodes
        if node.target is torch.ops.aten._assert_scalar.default
        and isinstance(node.args[0], torch.fx.Node)
        and isinstance(value := node.args[0].meta.get("val"), torch.SymBool)
        and all(
            each in value.node.shape_env.backed_var_to_val for each in value.node.expr.free_symbols
        )
    ]


def _always_holds(assertion: torch.fx.Node) -> bool:
    """Whether an assertion holds for each extent of a range that is not too long to try."""
    value = assertion.args[0].meta["val"].node  # type: ignore[union-attr]
    symbols = list(value.expr.free_symbols)
    if not symbols:
        return bool(value.expr)
    ranges = [value.shape_env.var_to_range[each] for each in symbols]
    if len(symbols) != 1 or not ranges[0].upper.is_finite:
        return False
    first, last = int(ranges[0].lower), int(ranges[0].upper)
    return last - first < _MOST_TRIED and all(
        bool(value.expr.subs(symbols[0], extent)) for extent in range(first, last + 1)
    )


@contextmanager
def _exporting(name: str) -> Iterator[None]:
    """Without gradients and warnings; what PyTorch raises becomes one line."""
    with torch.no_grad(), _quiet():
        try:
            yield
        except TapmlError as error:
            # PyTorch adds where it was, of many lines.
            error.args = tuple(
                str(each).partition("\n\nWhile executing ")[0] for each in error.args
            )
            raise
        except GuardOnDataDependentSymNode as error:
            where = _CALL.findall(str(error))
            file, line = where[-1] if where else ("", "")
            place = "/".join((*Path(file).parts[-3:-1], Path(file).name)).lstrip("/")
            raise InputError(
                f"{place}:{line}: the module of {name!r} asks for a number that only a run knows, "
                "as a branch, a loop or an extent: take torch.where of both, or torch.cond"
            ) from error
        except Exception as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(
                f"torch.export refuses the module of {name!r}: "
                f"{type(error).__name__}: {first}. It has to run without data-dependent Python "
                "control flow on the example inputs"
            ) from error


def _settle_extents(module: torch.fx.GraphModule) -> None:
    """Replace each number that is the same for every length, such as ``max(0, 1 - S)``, by it."""
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.SymInt):
            continue
        bounds = value.node.shape_env.bound_sympy(value.node.expr)
        if bounds.lower == bounds.upper:
            for user in list(node.users):
                settled = partial(_replaced, node, int(bounds.lower))
                user.args = torch.fx.node.map_arg(user.args, settled)
                user.kwargs = torch.fx.node.map_arg(user.kwargs, settled)


def _replaced(node: torch.fx.Node, number: int, argument: torch.fx.Node) -> Any:
    return number if argument is node else argument


def _sort_largest(module: torch.fx.GraphModule) -> None:
    """Let a ``topk`` of any order give a sorted one, which is one of these."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.topk.default:
            node.args = node.args[:4]
            node.kwargs = {name: each for name, each in node.kwargs.items() if name != "sorted"}


def _fill_empty(module: torch.fx.GraphModule) -> None:
    """Fill memory that has no content yet with zeros: two runs of the plan must not differ."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.empty.memory_format:
            value = node.meta["val"]
            node.target = torch.ops.aten.full.default
            node.args = (node.args[0], 0)
            node.kwargs = {"dtype": value.dtype, "device": value.device}


def _fill_with_infinity(module: torch.fx.GraphModule) -> None:
    """Fill with ones, and multiply: TVM's ``full`` fails for what is infinite or no number."""
    for node in list(module.graph.nodes):
        if node.target not in (torch.ops.aten.full.default, torch.ops.aten.full_like.default):
            continue
        value = node.args[1]
        if isinstance(value, float) and not math.isfinite(value):
            with module.graph.inserting_after(node):
                made = module.graph.call_function(torch.ops.aten.mul.Scalar, (node, value))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made, delete_user_cb=lambda user, own=made: user is not own)
            node.args = (node.args[0], 1.0)


def _leave_out_assertions(module: torch.fx.GraphModule, entry: str) -> None:
    """Ask nothing of values, as the indices of ``one_hot``: a kernel cannot raise.

    What is asked of extents has to hold for each of them.
    """
    of_lengths = _assertions_of_lengths(module)
    for node in list(module.graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        of_values = packet is torch.ops.aten._assert_scalar and node not in of_lengths
        if of_values or packet is torch.ops.aten._assert_async:
            module.graph.erase_node(node)
    for node in of_lengths:
        if not _always_holds(node):
            asked = node.args[0].meta["val"].node.expr  # type: ignore[union-attr]
            raise UnsupportedOperatorError(
                f"the program of {entry!r} asserts {asked}, which is not known to hold for each "
                "extent of its inputs: export it with fixed extents, or without the assertion"
            )
        module.graph.erase_node(node)


def _leave_out_empty(module: torch.fx.GraphModule) -> None:
    """Concatenate no parts of extent 0, as a rotary embedding of whole heads does.

    No kernel can be made for what computes nothing.
    """
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.cat.default:
            parts, *rest = node.args
            full = [each for each in parts if not _is_empty(each)]
            if 0 < len(full) < len(parts):
                node.args = (full, *rest)
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_empty(node: torch.fx.Node) -> bool:
    # An extent that depends on data cannot be compared.
    return any(isinstance(each, int) and each == 0 for each in node.meta["val"].shape)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch.export's warnings about its own internals: users cannot act on them."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _refuse_mutations(
    program: torch.export.ExportedProgram, origins: Mapping[str, Origin], entry: str
) -> None:
    lines = []
    for spec in program.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            origin = origins.get(spec.arg.name)
            where = f" at {origin.source} in {origin.module_path or 'the model'}" if origin else ""
            lines.append(f"{spec.target} is modified in place{where}")
    if lines:
        raise UnsupportedOperatorError(
            f"{entry!r} cannot be imported: {'; '.join(lines)}. Take the tensor as an input and "
            "return its new value instead"
        )


def _symbols(
    program: torch.export.ExportedProgram, description: EntryDescription
) -> dict[str, str]:
    """Map torch's names of dynamic dimensions (``s45``) to those of the caller's ``Dim``."""
    placeholders = [
        node
        for node, spec in zip(
            (node for node in program.graph.nodes if node.op == "placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is InputKind.USER_INPUT
    ]
    found: dict[str, str] = {}
    shapes = _flat_shapes(description.dynamic_shapes)
    for node, dimensions in zip(placeholders, shapes, strict=False):
        for axis, dimension in dimensions.items():
            extent = node.meta["val"].shape[axis]
            name = getattr(dimension, "__name__", None)
            if name and isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                found.setdefault(str(extent.node.expr), name)
    if len(set(found.values())) != len(found):
        return {}
    return found


def _flat_shapes(shapes: Any) -> list[dict[int, Any]]:
    """One mapping from axis to dimension per tensor, in input order."""
    if shapes is None:
        return []
    if isinstance(shapes, Mapping) and shapes and all(isinstance(key, str) for key in shapes):
        return [leaf for value in shapes.values() for leaf in _flat_shapes_of(value)]
    return [leaf for value in shapes for leaf in _flat_shapes_of(value)]


def _flat_shapes_of(value: Any) -> list[dict[int, Any]]:
    if value is None:
        return [{}]
    if isinstance(value, Mapping):
        return [dict(value)]
    items: Sequence[Any] = value
    if any(isinstance(item, Mapping) for item in items) or not items:
        return [leaf for item in items for leaf in _flat_shapes_of(item)]
    return [dict(enumerate(items))]
