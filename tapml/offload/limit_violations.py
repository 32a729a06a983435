"""The limits of a device that an operator's kernels violate, as data.

Another kernel can use fewer threads in a block or less shared memory. But if the operator's tensors
are larger than the largest buffer or the memory, no kernel helps.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tapml.compiler.preflight import check

if TYPE_CHECKING:
    from tapml.compiler.symbol_ranges import SymbolRanges
    from tapml_targets.library import Library
    from tapml_targets.limits import Limits

_MEMORY: Final = frozenset({"max_buffer_bytes", "memory_bytes"})
_OWN: Final = ("parameter ", "operator ")


def limit_violations(
    library: Library, limits: Limits, ranges: SymbolRanges
) -> tuple[dict[str, Any], ...]:
    """The limits that a Library of one operator violates.

    Returns
    -------
    tuple of dict
        ``where``, ``limit``, ``need``, ``has`` and ``symbols`` of
        :class:`~tapml.compiler.preflight.Problem`, and ``device``: whether the device is too small
        for any kernel.
    """
    return tuple(
        asdict(each) | {"device": each.limit in _MEMORY and each.where.startswith(_OWN)}
        for each in check(library, limits, ranges=ranges)
    )
