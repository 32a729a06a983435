"""mlc-llm from a folder of the user's: its model definitions and loaders, and nothing else of it.

The package's own start loads its engine and its library, which no definition needs. So an empty
package takes its place, and only the modules of models are imported. They run in this process: the
path is the user's word for that, as an import is.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import InputError

PACKAGE: Final = "mlc_llm"
VERSIONS: Final = ("0.1.dev0", "0.20.0.dev0")
"""What ``libinfo.py`` of a source that was tried says: that of its repository."""
_LONGEST_FILE: Final = 1 << 20


@dataclass(frozen=True)
class MlcSource:
    """An imported source.

    Attributes
    ----------
    folder
        The package's folder.
    version
        As the source says.
    digest
        SHA-256 of the names and texts of its Python files, hexadecimal.
    models
        Its registry: definitions by name, each with ``config``, ``model`` and ``source``.
    """

    folder: Path
    version: str
    digest: str
    models: dict[str, Any]

    def definition(self, name: str) -> Any:
        """The definition of a model type.

        Raises
        ------
        InputError
            If the source has none of that name.
        """
        if name not in self.models:
            import difflib

            near = difflib.get_close_matches(name, self.models, 1)
            hint = f"; nearest: {near[0]}" if near else f"; it has: {', '.join(self.models)}"
            raise InputError(f"mlc-llm {self.version} has no model type {name!r}{hint}")
        return self.models[name]


def open_mlc_source(path: str | Path) -> MlcSource:
    """Import the definitions of an mlc-llm source.

    Parameters
    ----------
    path
        Its repository, the folder ``python`` in it, or the package's folder.

    Raises
    ------
    InputError
        If there is no source of a known version, or it cannot be imported.
    """
    folder = _package_folder(Path(path).expanduser())
    version = _version(folder)
    digest = _digest(folder)
    _take_place(folder)
    try:
        with names_of_older_tvm():
            registry = importlib.import_module(f"{PACKAGE}.model").MODELS
            quantization = importlib.import_module(f"{PACKAGE}.quantization").QUANTIZATION
            cache = importlib.import_module(f"{PACKAGE}.nn").PagedKVCache
            _ = quantization["q0f32"], quantization["q0f16"], cache.create_generic
    except Exception as error:  # a source of another version fails in any way
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"mlc-llm {version} in {folder} cannot be imported: {lines[-1][:300]}; expected a "
            f"source of version {' or '.join(VERSIONS)} that fits the installed apache-tvm"
        ) from error
    return MlcSource(folder, version, digest, dict(registry))


@contextmanager
def names_of_older_tvm() -> Iterator[None]:
    """Within it, ``tvm.relax`` has the names that mlc-llm takes from another TVM than this one."""
    import tvm
    from tvm import relax

    substitutes = {
        "Constant": tvm.ir.GenericConst,
        "StringImm": tvm.ir.StringImm,
        # A value of a data type no longer exists; its only reader is replaced by ours.
        "DataTypeImm": lambda dtype: tvm.ir.StringImm(str(dtype)),
    }
    missing = {name: each for name, each in substitutes.items() if not hasattr(relax, name)}
    for name, each in missing.items():
        setattr(relax, name, each)
    try:
        yield
    finally:
        for name in missing:
            delattr(relax, name)


def _package_folder(path: Path) -> Path:
    for inside in (".", PACKAGE, f"python/{PACKAGE}"):
        folder = (path / inside).resolve()
        if (folder / "libinfo.py").is_file() and (folder / "model" / "model.py").is_file():
            return folder
    raise InputError(
        f"--mlc-llm {path}: no source of mlc-llm; expected its repository, with "
        f"python/{PACKAGE}/libinfo.py and python/{PACKAGE}/model/model.py"
    )


def _version(folder: Path) -> str:
    """What ``libinfo.py`` says, read without running it."""
    try:
        tree = ast.parse((folder / "libinfo.py").read_text("utf-8")[:_LONGEST_FILE])
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{folder / 'libinfo.py'} cannot be read: {error}") from error
    found = ""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            if "__version__" in names:
                found = str(node.value.value)
    if found not in VERSIONS:
        raise InputError(
            f"--mlc-llm: {folder} is version {found or 'unknown'}, expected "
            f"{' or '.join(VERSIONS)}: check out a source of that version"
        )
    return found


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _take_place(folder: Path) -> None:
    """An empty package of that folder; one of another folder goes."""
    known: Any = sys.modules.get(PACKAGE)
    if known is not None and list(getattr(known, "__path__", ())) == [str(folder)]:
        return
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
