"""Converts TVM's shapes to :mod:`tapml_targets.expression`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tapml_targets.codegen.expression import translate
from tapml_targets.expression import Expression


class _ByName(Mapping[Any, Any]):
    """Maps every TVM variable to the symbol of its name."""

    def __getitem__(self, variable: Any) -> str:
        return str(variable.name)

    def __contains__(self, variable: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


_BY_NAME = _ByName()


def expression(extent: Any) -> Expression:
    """One extent, with TVM's variables as symbols.

    Raises
    ------
    CompileError
        If the extent is not an integer expression of :mod:`tapml_targets.expression`.
    """
    return translate(extent, _BY_NAME)


def shape_of(extents: Any) -> tuple[Expression, ...]:
    """A shape: TVM's ``ShapeExpr`` or array of extents."""
    return tuple(expression(extent) for extent in extents)


def dtype_name(data_type: Any) -> str:
    """Name of a TVM data type, as :func:`tapml_targets.dtype.dtype` knows it."""
    return str(getattr(data_type, "dtype", data_type))
