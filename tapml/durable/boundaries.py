"""The crossing hook, for writers of this package.

It lies in :mod:`tapml_targets.boundaries`, whose documentation says what it is: the caches of the
device side cross boundaries, too.
"""

from __future__ import annotations

from tapml_targets.boundaries import crossing

__all__ = ["crossing"]
