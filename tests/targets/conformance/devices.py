"""Which platforms a test of the suite is for."""

from __future__ import annotations

import pytest

from tapml_targets.conformance_kernels import kernel_table
from tapml_targets.platforms import platform_names

# Workspaces and guard bands need pointers: a function over whole tensors is handed neither.
with_pointers = pytest.mark.platforms(
    *(name for name in platform_names() if kernel_table(name).POINTERS)
)
