"""Wheels for pip, made here: small ones, and of what is installed."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], metadata: str = ""
) -> None:
    """Write a wheel of pure Python; `files` by their path in it, `metadata` more lines of it."""
    folder.mkdir(exist_ok=True)
    information = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"{metadata}",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in files) + f"{information}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{information}/RECORD": record}.items():
            wheel.writestr(path, text)


def write_installed(folder: Path, name: str) -> None:
    """Write a wheel of a distribution that is installed."""
    folder.mkdir(exist_ok=True)
    found = distribution(name)
    lines = (found.read_text("WHEEL") or "").splitlines()
    tag = next(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:"))
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{tag}.whl", "w") as wheel:
        for path in found.files or ():
            if ".." not in path.parts and "__pycache__" not in path.parts:
                wheel.write(path.locate(), str(path))
