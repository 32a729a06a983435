"""Resolves the value of ``--model`` to a folder; other files are converted to one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.models.converted import EXPORTED, GGUF, converted_folder
from tapml.models.file_names import CONFIG
from tapml_targets.errors import InputError

_ZOO = Path(__file__).resolve().parent / "zoo"
ONNX: Final = ".onnx"
_TO_ONNX: Final = "; export it as ONNX"
_OF_TORCH: Final = (
    "; build its module in Python and give it to tapml.from_torch, or torch.export.save it as .pt2"
)
# What to do with other files.
_HINTS: Final = {
    ".safetensors": "; config.json belongs beside it, and the folder of both is the model",
    ".ort": "; it is onnxruntime's own form: give the .onnx file that it was made of",
    ".pte": "; it is ExecuTorch's: torch.export.save the program that it was made of as .pt2",
    **dict.fromkeys((".engine", ".plan", ".mlmodel"), "; it is compiled: give what it was made of"),
    **dict.fromkeys((".joblib", ".pkl"), "; a pickle is never read: export it as ONNX (skl2onnx)"),
    ".h5": _TO_ONNX,
    ".keras": f"{_TO_ONNX} (model.export(NAME, format='onnx'))",
    ".pb": f"{_TO_ONNX} (tf2onnx)",
    ".tflite": f"{_TO_ONNX} (tf2onnx --tflite)",
    **dict.fromkeys((".bin", ".ckpt", ".pt", ".pth"), _OF_TORCH),
}


def home_of(model: Path) -> Path:
    """The folder of a model that is a folder or a file."""
    return model if model.is_dir() else model.parent


def file_hint(path: Path) -> str:
    """What to do with a file that is no model's folder; empty where that is not known."""
    if path.suffix == ".safetensors" and (path.parent / CONFIG).is_file():
        return f"; give its folder, {path.parent}"
    if (path / "saved_model.pb").is_file():
        return _HINTS[".pb"]
    return _HINTS.get(path.suffix.lower(), "")


def zoo_names() -> tuple[str, ...]:
    """Names of the models that ship with tapml."""
    return tuple(sorted(path.parent.name for path in _ZOO.glob(f"*/{CONFIG}")))


def zoo_folder(name: str) -> Path | None:
    """Folder of a zoo model; None if the zoo has no model of that name."""
    return _ZOO / name if name in zoo_names() else None


def resolve_model(name_or_path: str | Path) -> Path:
    """Folder or ONNX file of a model given by zoo name or path; a zoo name takes precedence.

    Raises
    ------
    InputError
        If there is neither; the message lists the zoo's names.
    """
    text = str(name_or_path)
    found = zoo_folder(text)
    if found is not None:
        return found
    path = Path(name_or_path).expanduser()
    if path.exists():
        converted = converted_folder(path.resolve())
        if converted is not None:
            return converted
    if path.is_dir() or (path.suffix == ONNX and path.is_file()):
        return path.resolve()
    if path.is_file():
        raise InputError(
            f"{text!r} is a file: expected a model folder (config.json, *.safetensors), a GGUF "
            f"file (*{GGUF}), an {ONNX} file, an exported program (*{EXPORTED}), or the name of a "
            f"model that ships with tapml{file_hint(path)}"
        )
    zoo = ", ".join(zoo_names()) or "none here: `pip install ./tapml/models/zoo` in a checkout"
    raise InputError(
        f"no model {text!r}: expected an existing folder or the name of a model that ships "
        f"with tapml ({zoo}); other models are not downloaded, so download the folder first"
    )
