"""What is installed here, and how to install what is not."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

COMPILER_DISTRIBUTIONS: Final = ("apache-tvm", "apache-tvm-ffi")


def package_version(distribution: str) -> str | None:
    """The version of an installed distribution; None where it is not installed.

    A package that was built here and only lies on the path is not installed in this sense.
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def versions_text(*distributions: str) -> str:
    """Distributions with their versions, as a part of cache keys."""
    return ", ".join(f"{name} {package_version(name) or 'built here'}" for name in distributions)


def compiler_versions() -> str:
    """Versions of what compiles kernels, the reference and float64 twins: TVM's and tvm-ffi's."""
    return versions_text(*COMPILER_DISTRIBUTIONS)


def install_hint(*extras: str) -> str:
    """The command that installs tapml with `extras`, and where to run it.

    By path, for an index may hold something else under the same name.
    """
    wanted = f".[{','.join(extras)}]" if extras else "."
    return f'pip install -e "{wanted}" in the project\'s folder'
