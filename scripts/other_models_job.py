"""One row of scripts/other_models.py, in a process of its own."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from scripts.coverage import tapml_command
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.models.loaded import Loaded
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml_targets.errors import InputError, MismatchError
from tests.models.other_models import OTHERS, UNUSUAL, make_other, make_unusual

TRY: Final = "scripts.other_models_job:try_row"
WRAPPER, IMPORT, ROOT, MOVE = "wrapper", "import", "root", "move"
STAGES: Final = (WRAPPER, IMPORT, ROOT, MOVE)
TARGET: Final = "opencl"
"""What the last stage moves a model to."""
LOADING_SECONDS: Final = 60.0
"""What loading may take beside the deadline of a migration."""


def try_row(asked: dict[str, Any]) -> dict[str, Any]:
    """Make the row's folder and take it through the stages; what came of it.

    `asked` has `part` (``others`` or ``unusual``), `number`, the last stage, and the `seconds` that
    a migration may take. The result has `refused` or `wrong` with the line that a user reads, or
    `broken` for an error of no such kind. The last stage is a whole `tapml offload`, which imports
    and roots the model itself.
    """
    torch.set_num_threads(1)
    found: dict[str, Any] = {"stage": asked["stage"]}
    before = time.process_time()
    with tempfile.TemporaryDirectory(prefix="tapml-other-") as temporary:
        try:
            folder = Path(temporary) / "model"
            model = _model(asked, folder)
            if asked["stage"] == MOVE:
                found["wrapper"] = f"{root_wrapper(model):.1e}"
                _move(folder, asked["seconds"], found)
            else:
                through(model, found, asked["stage"])
        except InputError as error:
            found["refused"] = line(error).replace(f"{temporary}/", "")
        except MismatchError as error:
            found["wrong"] = line(error)
        except Exception as error:  # what no command may end with
            found["broken"] = f"{type(error).__name__}: {line(error)}"
    return found | {"cpu_seconds": round(time.process_time() - before, 1)}


def _move(folder: Path, deadline: float, found: dict[str, Any]) -> None:
    """Add how many operators of the model move, and what stops the first that does not."""
    session = folder.parent / "session"
    ended = tapml_command(
        deadline,
        "offload", "--model", str(folder), "--target", TARGET, "--session", str(session),
        "--keep-going", "--quiet", "--workers", "1", "--new-tokens", "2", "--strategy", "bisect",
    )  # fmt: skip
    found["moving_cpu_seconds"] = round(ended.cpu_seconds, 1)
    if ended.code is None:
        raise RuntimeError(f"not moved after {deadline:.0f} s")
    try:
        report = json.loads((session / "report.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise (InputError if ended.code == InputError.exit_code else RuntimeError)(
            ended.said
        ) from None
    found["operators"] = report["summary"]["operators"]
    found["moved"] = report["summary"]["moved"]
    if ended.code:
        stops = [each for each in report["operators"] if each["state"] == "failed"]
        reason = f"{stops[0]['name']}: {stops[0]['reason']}" if stops else ended.said
        raise MismatchError(f"on {TARGET}: {reason}")


def _model(asked: dict[str, Any], folder: Path) -> Loaded:
    if asked["part"] == "others":
        other = OTHERS[asked["number"]]
        try:
            make_other(folder, other)
        except Exception as error:
            raise RuntimeError(f"the sample itself cannot be made: {line(error)}") from error
        return load_any(folder)
    family, _, settings = UNUSUAL[asked["number"]]
    try:
        make_unusual(folder, family, settings)
    except Exception as error:
        raise RuntimeError(f"the sample itself cannot be made: {line(error)}") from error
    return load_any(folder)


def through(model: Loaded, found: dict[str, Any], last: str) -> None:
    found["wrapper"] = f"{root_wrapper(model):.1e}"
    if not any(step.own.any() for step in model.own_steps()):
        raise RuntimeError("the sample itself gives zeros alone: they compare with nothing")
    if last == WRAPPER:
        return
    imported = import_model(model)
    found["operators"] = len(imported.plan.operators)
    if last == IMPORT:
        return
    worst = root(model, imported).worst
    found["rooted"] = f"{worst.ratio:.2g}" if worst is not None else "0"


def line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
