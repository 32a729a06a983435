"""How many terms an operation may have that is written out in others."""

from __future__ import annotations

import math
from typing import Any, Final

from tapml_targets.errors import UnsupportedOperatorError

# As float32, 2 GiB: PyTorch and the oracles hold them all at once.
_MOST: Final = 1 << 29


def refuse_many(operation: str, *extents: Any) -> None:
    """Refuse an operation whose terms are as many as an array of `extents` has elements.

    Extents that only the run knows are not refused.

    Raises
    ------
    UnsupportedOperatorError
        If they are too many.
    """
    count = math.prod(extents)
    if isinstance(count, int) and count > _MOST:
        raise UnsupportedOperatorError(
            f"{operation} is written out as {' x '.join(map(str, extents))} terms, of which at "
            f"most {_MOST} are imported. Give it fewer rows"
        )
