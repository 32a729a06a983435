"""ONNX's reference implementation with one of the causes."""

from dataclasses import replace

from scripts.cradle_causes.causes import CAUSES
from scripts.cradle_causes.further import FURTHER
from tapml.backends.onnx_reference import DESCRIPTION as HEALTHY

DESCRIPTION = replace(
    HEALTHY,
    title=f"{HEALTHY.title} with a fault",
    variants={each.name: each.title for each in (*CAUSES, *FURTHER) if each.onnx},
)
