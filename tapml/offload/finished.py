"""A finished migration, opened to be used: the plan on its target alone."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tapml.execute.plan_runner import PlanRunner
from tapml.graph import plan_format
from tapml.graph.importer import weights_of
from tapml.graph.plan import GraphPlan
from tapml.models.huggingface import load_model
from tapml.models.loaded import LoadedModel
from tapml.offload.finished_folder import (
    CONSTANTS,
    FINISHED,
    LIBRARY,
    MODEL,
    PLAN,
    check_finished,
)
from tapml_rpc.local import open_local
from tapml_targets import library_format
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Library


@contextmanager
def open_finished(
    folder: Path, device: str | None = None
) -> Iterator[tuple[LoadedModel, PlanRunner]]:
    """Load the model's weights and its Library onto the target.

    Parameters
    ----------
    folder
        The session's.
    device
        Another device of the same platform; the one it was checked on if None.

    Raises
    ------
    InputError
        If the session has not ended with every operator on the target, or its model has changed.
    """
    session = check_finished(folder)
    finished = folder / FINISHED
    settings = session.settings
    plan, constants, library, moved = _read(finished)
    dtype: Literal["float16", "float32"] = "float16" if moved["dtype"] == "float16" else "float32"
    model = load_model(settings.model, dtype=dtype, context_length=moved["context_length"])
    if model.weights_hash != moved["weights_hash"]:
        raise InputError(
            f"the weights in {model.source} are not those that were moved; begin anew with "
            f"`tapml offload --session {folder} --restart`"
        )
    weights = weights_of(model, plan, constants)
    with (
        open_local(device or moved["device"], dtype=dtype) as remote,
        PlanRunner(plan, weights, library, remote) as runner,
    ):
        yield model, runner


def _read(folder: Path) -> tuple[GraphPlan, dict[str, npt.NDArray[Any]], Library, dict[str, Any]]:
    try:
        plan = plan_format.unpack((folder / PLAN).read_bytes())
        library = library_format.unpack((folder / LIBRARY).read_bytes())
        with np.load(folder / CONSTANTS, allow_pickle=False) as archive:
            constants = {name: archive[name] for name in archive.files}
        data = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        moved = {
            "dtype": str(data["dtype"]),
            "context_length": int(data["context_length"]),
            "weights_hash": str(data["weights_hash"]),
            "device": str(data["device"]),
        }
    except (ProtocolError, OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{folder} is damaged ({error}); run `tapml offload` on the session again"
        ) from error
    return plan, constants, library, moved
