"""PyTorch's operations with one of the further faults."""

from dataclasses import replace

from scripts.cradle_causes.further import FURTHER
from tapml.backends.torch_eager import DESCRIPTION as HEALTHY

DESCRIPTION = replace(
    HEALTHY,
    title=f"{HEALTHY.title} with a fault",
    variants={each.name: each.title for each in FURTHER if each.torch},
)
