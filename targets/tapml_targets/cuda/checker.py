"""compute-sanitizer where there is an NVIDIA GPU and it is installed, else the simulator's mode.

``TAPML_CUDA_CHECKER=compute-sanitizer`` or ``simulator`` chooses; see
:mod:`tapml_targets.checker`.
"""

from __future__ import annotations

import os
from typing import Any

from tapml_targets.cuda import sanitizer
from tapml_targets.simulator import checker as simulator

_CHOICE = "TAPML_CUDA_CHECKER"


def __getattr__(name: str) -> Any:
    chosen = os.environ.get(_CHOICE)
    by_sanitizer = chosen == sanitizer.NAME or (not chosen and not sanitizer.missing())
    return getattr(sanitizer if by_sanitizer else simulator, name)
