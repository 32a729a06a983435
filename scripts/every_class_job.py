"""One row of scripts/every_class.py, in a process of its own."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from scripts.other_models_job import line, through
from tapml.models.huggingface import load_any
from tapml_targets.errors import InputError, MismatchError
from tests.models.shrunk import make_shrunk, variants

TRY: Final = "scripts.every_class_job:try_class"


def try_class(asked: dict[str, Any]) -> dict[str, Any]:
    """Take a class through the stages with the smallest configuration that its forward runs with.

    `asked` has `name` and the last `stage`. The result is that of
    :func:`scripts.other_models_job.try_row`, or has `sample` if no configuration of it is tiny.
    """
    torch.set_num_threads(1)
    before = time.process_time()
    found: dict[str, Any] = {"sample": "no configuration of it is small"}
    try:
        small_ones = list(variants(asked["name"]))
    except (AttributeError, ImportError) as error:  # it needs a library that is not here
        return {"stage": asked["stage"], "sample": " ".join(str(error).split())}
    with tempfile.TemporaryDirectory(prefix="tapml-class-") as temporary:
        for number, (small, config) in enumerate(small_ones):
            folder = Path(temporary) / str(number) / "model"
            folder.parent.mkdir()
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    make_shrunk(folder, asked["name"], config)
            except Exception as error:  # a class may ask for anything
                if "sample" in found:
                    found["sample"] = line(error)
                continue
            now = _tried(folder, asked["stage"], temporary) | {"small": small}
            if "sample" in found or "wrapper" in now:
                found = now
            if "wrapper" in found:
                break
    return {"stage": asked["stage"], **found, "cpu_seconds": round(time.process_time() - before, 1)}


def _tried(folder: Path, stage: str, temporary: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        model = load_any(folder)
        found["workload"] = model.stored.workload
        through(model, found, stage)
    except InputError as error:
        found["refused"] = line(error).replace(f"{temporary}/", "")
    except MismatchError as error:
        found["wrong"] = line(error)
    except Exception as error:  # what no command may end with
        found["broken"] = f"{type(error).__name__}: {line(error)}"
    return found
