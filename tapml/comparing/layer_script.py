"""A guilty layer alone: its model, what it read, and a script that shows it on both backends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.keras_loading import CODE
from tapml.backends.runner import Array, Node
from tapml.comparing.processes import BackendFailedError, BackendProcess
from tapml.durable.files import replace_folder
from tapml.isolate.imported_files import imported_beside
from tapml_targets.errors import InputError

SCRIPT: Final = "show.py"
OWN_CODE: Final = "classes"
"""The folder with copies of the user's file that defines classes, and of what it imports there."""
LAYERS: Final = "layers"
"""The folder of the layers, beside a result."""
_TEXT: Final = '''\
"""{title}: run me where tapml is installed."""

from pathlib import Path

import tapml

here = Path(__file__).parent
for pair in tapml.compare(here / {name!r}, {backends!r}, here / "data.npz"{code}).pairs:
    print(*pair.backends, pair.status, pair.layer, pair.blamed, pair.reason, sep="; ")
'''


def write_layer(
    folder: Path,
    node: Node,
    inputs: Sequence[Array],
    process: BackendProcess,
    backends: Sequence[str],
) -> Path | None:
    """Write a layer's folder below `folder`; its script, or None for a layer that has no model.

    Parameters
    ----------
    folder
        Gets a folder named after the layer and the backends.
    inputs
        What the layer read.
    process
        A backend that has the whole model loaded.
    backends
        What the script compares.
    """
    made_folder = folder / _plain("-".join([node.name, *backends]))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with replace_folder(made_folder) as made:
            name, arrays = process.save_layer(node.name, inputs, made)
            if not arrays or len({each.shape[:1] for each in arrays.values()}) > 1:
                raise InputError(f"{node.name} reads no instances")
            code = process.environment.variables.get(CODE)
            write_script(
                made, f"{node.name} ({node.kind}) alone", name, backends, arrays,
                Path(code) if code else None,
            )  # fmt: skip
    except (BackendFailedError, InputError):
        return None
    return made_folder / SCRIPT


def write_script(
    folder: Path,
    title: str,
    model: str,
    backends: Sequence[str],
    arrays: dict[str, Any],
    code: Path | None = None,
) -> None:
    """Write ``data.npz`` and ``show.py`` beside a model that lies in the folder.

    `code` defines classes of the model; it is copied with the files that it imports beside it.
    """
    np.savez(folder / "data.npz", **arrays)
    own = ""
    if code is not None:
        for name, each in {code.name: code, **imported_beside(code)}.items():
            (folder / OWN_CODE / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / OWN_CODE / name).write_bytes(each.read_bytes())
        own = f", code=here / {f'{OWN_CODE}/{code.name}'!r}"
    text = _TEXT.format(title=title, backends=list(backends), name=model, code=own)
    (folder / SCRIPT).write_text(text, encoding="utf-8")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120]
