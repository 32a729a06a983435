"""What a device lacks for an operator, as data: which limit, the need, and whether a kernel helps.

Too many threads in a block or too much shared memory are a kernel's doing: another kernel keeps
within the limit. That a tensor of the operator is larger than the device's largest buffer, or that
its tensors together are larger than its memory, no kernel changes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tapml.compiler.preflight import check

if TYPE_CHECKING:
    from tapml.compiler.reach import Reach
    from tapml_targets.library import Library
    from tapml_targets.limits import Limits

_MEMORY: Final = frozenset({"max_buffer_bytes", "memory_bytes"})
_OWN: Final = ("parameter ", "operator ")


def lacks_of(library: Library, limits: Limits, reach: Reach) -> tuple[dict[str, Any], ...]:
    """What a device with `limits` lacks for a Library of one operator.

    Returns
    -------
    tuple of dict
        ``where``, ``limit``, ``need``, ``has`` and ``symbols`` of
        :class:`~tapml.compiler.preflight.Problem`, and ``device``: whether the device itself is
        too small, whatever the kernel.
    """
    return tuple(
        asdict(each) | {"device": each.limit in _MEMORY and each.where.startswith(_OWN)}
        for each in check(library, limits, reach=reach)
    )
