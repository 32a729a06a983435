"""The binding of Apple's framework, and what is said where there is none."""

from __future__ import annotations

import sys
from typing import Any, Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint

REMEDY: Final = (
    f"kernels for Metal run on a Mac ({install_hint('metal')} there, then "
    "`tapml rpc serve --device metal`, and --device tcp://MAC:9190 here); without one they are "
    f"executed from source by {install_hint('simulator')}"
)


def import_metal() -> Any:
    """The module ``Metal`` of pyobjc-framework-Metal.

    Raises
    ------
    SetupError
        If it is not installed, or this is no Mac.
    """
    try:
        import Metal
    except ImportError as error:
        where = "pyobjc-framework-Metal cannot be imported here"
        if sys.platform != "darwin":
            where = "Apple's GPUs are in Macs, and this is none"
        raise SetupError(f"{where} ({error}); {REMEDY}") from None
    return Metal


def said(error: Any) -> str:
    """What an NSError says; empty where there is none."""
    return "" if error is None else str(error.localizedDescription()).strip()
