"""What the stand-ins of vendors' compilers make, which must not be in this user's cache."""

from __future__ import annotations

from collections.abc import Callable

from tapml_targets.kept_code import KeptCode


class UnkeptCode(KeptCode):
    """Makes the code each time."""

    def code(self, build: Callable[[], bytes]) -> bytes:
        return build()
