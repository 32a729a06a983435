"""The reference's machine code as it lies in the user's cache: found again without TVM.

Compiling the reference, or even finding out that it is compiled already, takes TVM and minutes or
seconds. Whoever compiled it may remember under which key it is kept; as long as compiler, code
generators and processor are the same, loading it takes apache-tvm-ffi alone.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tapml.compiler.cache import DiskCache
from tapml.compiler.reference import ReferenceFunction, ReferenceModule
from tapml_targets.cpu.loader import import_tvm_ffi
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.graph.plan import Operator

REFERENCE_CACHE: Final = "reference"
REFERENCE_SUFFIX: Final = ".so"
_RUNTIME: Final = "libtvm_runtime.[sd][oy]*"
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROCESSOR_LINES: Final = ("vendor_id", "model name", "CPU part", "flags", "Features")


@dataclass(frozen=True)
class StoredReference:
    """Where the code of some operators lies.

    Attributes
    ----------
    key
        Of the shared object in the cache, hexadecimal.
    symbols
        The function of each operator in it, by the operator's name.
    """

    key: str
    symbols: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read back what :meth:`to_json` gave, trusting nothing in it.

        Raises
        ------
        InputError
            If it is something else.
        """
        match data:
            case {"key": str(key), "symbols": dict(symbols)} if _KEY.fullmatch(key):
                texts = all(isinstance(each, str) and _SYMBOL.fullmatch(each) for each in
                            symbols.values())  # fmt: skip
                if texts and all(isinstance(name, str) for name in symbols):
                    return cls(key, symbols)
        raise InputError("a stored reference: expected a key and a symbol for each operator")

    def load(self, operators: Iterable[Operator]) -> ReferenceModule | None:
        """The operators, callable; None where the cache does not hold all of them any more.

        Raises
        ------
        SetupError
            If apache-tvm-ffi is not installed.
        """
        cached = DiskCache(REFERENCE_CACHE, suffix=REFERENCE_SUFFIX)
        path = cached.file(self.key)
        if path is None or not _load_runtime():
            return None
        try:
            module = import_tvm_ffi().load_module(str(path))
            functions = {
                operator.name: ReferenceFunction(
                    operator.name,
                    operator.parameters,
                    operator.symbols,
                    module[self.symbols[operator.name]],
                )
                for operator in operators
            }
        except (RuntimeError, AttributeError, KeyError):
            # Linked against something that is gone, or of other operators: it is compiled again.
            return None
        return ReferenceModule(functions, {}, self)


@cache
def _load_runtime() -> bool:
    """Load the library that gives the code its workspaces; without it a call of them crashes.

    It is 3 MB of TVM's 260 and loads in a millisecond; importing TVM finds it loaded.
    """
    import_tvm_ffi()
    found = find_spec("tvm")
    for folder in (found and found.submodule_search_locations) or ():
        for path in sorted(Path(folder, "lib").glob(_RUNTIME)):
            try:
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return True
    return False


@cache
def processor_identity() -> str:
    """Which processor the reference was compiled for, as the operating system describes it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    described = [found[name] for name in _PROCESSOR_LINES if name in found]
    return " ".join([platform.machine(), *described])
