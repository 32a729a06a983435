"""From what a user types after ``--model`` to a folder."""

from __future__ import annotations

from pathlib import Path

from tapml_targets.errors import InputError

_ZOO = Path(__file__).resolve().parent / "zoo"
_CONFIG = "config.json"


def zoo_names() -> tuple[str, ...]:
    """Names of the models that ship with tapml."""
    return tuple(sorted(path.parent.name for path in _ZOO.glob(f"*/{_CONFIG}")))


def zoo_folder(name: str) -> Path | None:
    """Folder of the zoo model with that name, None where there is none."""
    return _ZOO / name if name in zoo_names() else None


def resolve_model(name_or_path: str | Path) -> Path:
    """Folder of a model given by zoo name or by path; a zoo name wins over a folder of that name.

    Raises
    ------
    InputError
        If it is neither; the zoo's names are listed.
    """
    text = str(name_or_path)
    found = zoo_folder(text)
    if found is not None:
        return found
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path.resolve()
    zoo = ", ".join(zoo_names()) or "none"
    if path.exists():
        raise InputError(
            f"{text!r} is a file: expected a model's folder (config.json, *.safetensors) or the "
            f"name of a model that ships with tapml ({zoo})"
        )
    raise InputError(
        f"no model {text!r}: expected a folder that exists or the name of a model that ships "
        f"with tapml ({zoo}); models are not downloaded, so download the folder first"
    )
