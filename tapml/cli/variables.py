"""The environment variables that tapml reads, to tell a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

PREFIX: Final = "TAPML_"
VARIABLES: Final = frozenset(
    {
        "ALLOW_SHARED_LIBRARIES", "CACHE_DIR", "CHECKS", "CONFIG_DIR", "CUDA_CHECKER", "FAULT",
        "ICD_VENDORS", "INVARIANTS_NEEDS", "INVARIANTS_PACKAGES", "INVARIANTS_TRACE",
        "MAP_WEIGHTS", "MODEL_CODE", "OCLGRIND", "PROBE_SECONDS", "REQUIRE_DEVICES", "RPC_CA",
        "RPC_FINGERPRINT", "RPC_KEY", "RPC_SERVER_KEY", "RPC_TOKEN", "SANITIZER_LOG",
        "SANITIZER_TOOL", "SIMULATOR_LOG", "SIMULATOR_SCHEDULE", "TRACKER", "TRACKER_CA",
        "TRACKER_FINGERPRINT", "TRACKER_KEY", "TRACKER_TOKEN", "VALIDATION_LAYER",
        "VK_DRIVER_FILES", "VULKAN_CHECK",
    }
)  # fmt: skip
"""Their names behind the prefix."""
# Others, such as those of a service's file, are a user's own.
_ALIKE: Final = 0.85


def misspelt(names: Iterable[str]) -> Iterator[str]:
    """A line for each of `names` that tapml does not read and that is nearly one that it reads."""
    odd = sorted(
        name.removeprefix(PREFIX)
        for name in names
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in VARIABLES
    )
    if not odd:
        return
    # It takes longer to import than a short command runs.
    from difflib import get_close_matches

    for name in odd:
        for near in get_close_matches(name, VARIABLES, n=1, cutoff=_ALIKE):
            yield f"tapml reads no variable {PREFIX}{name}: did you mean {PREFIX}{near}?"
