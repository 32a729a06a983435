"""Models in other files than Hugging Face's, converted to a folder once, in the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from tapml.durable.files import replace_folder
from tapml_targets.cache_folder import cache_folder
from tapml_targets.errors import InputError, SetupError
from tapml_targets.installed import versions_text

GGUF: Final = ".gguf"
EXPORTED: Final = ".pt2"
_CODE: Final = (
    "exported_file.py",
    "gguf/architectures.py",
    "gguf/blocks.py",
    "gguf/convert.py",
    "gguf/tokenizer.py",
    "mlc_folder.py",
    "program_checks.py",
    "program_text.py",
    "recorded_module.py",
)


def converted_folder(path: Path) -> Path | None:
    """The folder that a GGUF file, an exported program or an mlc folder is converted to, or None.

    Raises
    ------
    InputError
        If it cannot be converted.
    SetupError
        If the cache cannot be used.
    """
    convert = _conversion(path)
    if convert is None:
        return None
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    try:
        cached = cache_folder("converted")
        seen = [(each, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    except OSError as error:
        raise SetupError(
            f"{error.filename} cannot be used for the converted model: {error.strerror}; choose "
            "another cache (TAPML_CACHE_DIR)"
        ) from error
    return _once(convert, path, cached, tuple(seen))


def _conversion(path: Path) -> Callable[[Path, Path], None] | None:
    # torch comes with either, and most models need neither.
    if path.is_file():
        if path.suffix.lower() == EXPORTED:
            from tapml.models.exported_file import convert_exported

            return convert_exported
        if path.suffix.lower() != GGUF:
            return None
        from tapml.models.gguf.convert import convert_gguf

        return convert_gguf
    if not (path / "mlc-chat-config.json").is_file() or (path / "config.json").is_file():
        return None
    from tapml.models.mlc_folder import convert_mlc

    return convert_mlc


@cache
def _once(
    convert: Callable[[Path, Path], None],
    path: Path,
    cached: Path,
    seen: tuple[tuple[Path, int, int], ...],
) -> Path:
    """Files are hashed once in a process, unless they change."""
    # The model has the folder's name.
    folder = cached / _digest([each for each, _, _ in seen])[:16] / path.stem[:80]
    if not (folder / "config.json").is_file():
        with replace_folder(folder) as made:
            convert(path, made)
    return folder


def _digest(files: list[Path]) -> str:
    """Of the files, and of the code that converts them."""
    digest = hashlib.sha256()
    try:
        for path in files:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    for name in _CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    if any(path.suffix.lower() == EXPORTED for path in files):
        # A recorded program is read by the PyTorch that wrote it.
        digest.update(versions_text("torch").encode())
    return digest.hexdigest()
