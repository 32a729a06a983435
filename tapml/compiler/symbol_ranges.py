"""Values of shape symbols that a plan's operators receive, for the longest or a given input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, Operator
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, evaluate
from tapml_targets.library import Library

Symbols = Mapping[str, int]


@dataclass(frozen=True)
class SymbolRanges:
    """Values of shape symbols.

    Attributes
    ----------
    operators
        Per operator, the distinct combinations of values at its call sites; unknown symbols are
        omitted.
    entries
        The same per entry, in the entry's symbols.
    """

    operators: Mapping[str, tuple[Symbols, ...]] = field(default_factory=dict)
    entries: Mapping[str, Symbols] = field(default_factory=dict)


def symbol_ranges(plan: GraphPlan, given: Mapping[str, Symbols] | None = None) -> SymbolRanges:
    """The symbol values of every entry and operator of a plan.

    `given` has the entries' symbols by entry; None means the longest inputs of all entries.
    """
    entries = given
    if entries is None:
        entries = {name: _longest(entry) for name, entry in plan.entries.items()}
    operators: dict[str, list[Symbols]] = {}
    for name in entries:
        entry = plan.entries[name]
        for call in entry.calls:
            symbols = _at_call(plan.operators[call.operator], call, entry, entries[name])
            known = operators.setdefault(call.operator, [])
            if symbols and symbols not in known:
                known.append(symbols)
    return SymbolRanges({name: tuple(found) for name, found in operators.items()}, entries)


def library_symbol_ranges(
    library: Library, entries: Mapping[str, Symbols]
) -> dict[str, list[Symbols]]:
    """The symbol values that a Library's own entries pass to each operator.

    It covers operators that were made in linking, which no plan contains.
    """
    found: dict[str, list[Symbols]] = {}
    for name, entry in library.entries.items():
        shapes = {value.name: value.shape for value in entry.values}
        for call in entry.calls:
            parameters = library.operators[call.operator].parameters
            given = dict(call.symbols)
            for argument, parameter in zip(call.arguments, parameters, strict=True):
                given |= {
                    symbol: extent
                    for symbol, extent in zip(parameter.shape, shapes[argument], strict=True)
                    if isinstance(symbol, str)
                }
            values = {
                symbol: extent
                for symbol, expression in given.items()
                if (extent := known_extent(expression, entries.get(name, {}))) is not None
            }
            known = found.setdefault(call.operator, [])
            if values and values not in known:
                known.append(values)
    return found


def known_extent(expression: Expression, symbols: Symbols) -> int | None:
    """The value of an expression; None if one of its symbols has none."""
    try:
        return evaluate(expression, symbols)
    except InputError:
        return None


def _longest(entry: Entry) -> Symbols:
    return {bounds.symbol: bounds.upper for bounds in entry.bounds if bounds.upper is not None}


def _at_call(operator: Operator, call: CallStep, entry: Entry, symbols: Symbols) -> Symbols:
    given: list[tuple[Expression, Expression]] = [(name, value) for name, value in call.symbols]
    for name, parameter in zip(call.arguments, operator.parameters, strict=True):
        given += zip(parameter.shape, entry.values[name].shape, strict=True)
    found = {}
    for symbol, value in given:
        extent = known_extent(value, symbols) if isinstance(symbol, str) else None
        if isinstance(symbol, str) and extent is not None:
            found[symbol] = extent
    return found
