"""The reference's compiled operators, and how they are loaded from the user's cache without TVM.

Compiling the reference, or even finding out that it is compiled already, takes TVM and minutes or
seconds. A session remembers the key under which the code is kept; as long as compiler, code
generators and processor are the same, loading it takes apache-tvm-ffi alone.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided

from tapml.compiler.cache import DiskCache
from tapml.compiler.reference_sorts import register_sorts
from tapml_targets.cpu.loader import import_tvm_ffi
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Parameter

if TYPE_CHECKING:
    from tapml.plan.graph_plan import Operator

REFERENCE_CACHE: Final = "reference"
REFERENCE_SUFFIX: Final = ".so"
_RUNTIME: Final = "libtvm_runtime.[sd][oy]*"
_Key: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Symbol: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
_PROCESSOR_LINES: Final = ("vendor_id", "model name", "CPU part", "flags", "Features")


class ReferenceFunction:
    """One operator, callable on numpy arrays in the operator's parameter order.

    Written parameters are the caller's arrays and are filled in place. bfloat16 tensors are uint16
    arrays of the raw bits or ``ml_dtypes.bfloat16`` arrays.
    """

    def __init__(
        self, name: str, parameters: tuple[Parameter, ...], symbols: tuple[str, ...], function: Any
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.symbols = symbols
        self._function = function
        self._foreign = tuple(index for index, p in enumerate(parameters) if p.dtype == "bfloat16")

    def __call__(self, *tensors: Any, symbols: Mapping[str, int] | None = None) -> None:
        """Run the operator.

        Parameters
        ----------
        tensors
            One per parameter: dense numpy arrays, or what :meth:`tensor` returned for one.
        symbols
            The integers the operator takes beside its tensors.

        Raises
        ------
        InputError
            If count, shape, dtype or layout differ from the operator's parameters.
        """
        if self._foreign or self.symbols:
            tensors = self._prepare(tensors, symbols or {})
        try:
            self._function(*tensors)
        except BufferError:
            self._call_checked(tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            if all(getattr(each, "size", 1) for each in tensors):
                raise self._refused(tensors, error) from error
            self._call_checked(tensors)

    def _prepare(self, tensors: Sequence[Any], symbols: Mapping[str, int]) -> tuple[Any, ...]:
        prepared = list(tensors)
        for index in self._foreign:
            if index < len(prepared):
                prepared[index] = tensor(prepared[index], "bfloat16")
        missing = [name for name in self.symbols if name not in symbols]
        if missing:
            raise InputError(
                f"operator {self.name!r} needs values for the symbols {', '.join(missing)}"
            )
        return (*prepared, *(symbols[name] for name in self.symbols))

    def _call_checked(self, tensors: Sequence[Any]) -> None:
        """Arrays that numpy does not lend as they are: read-only ones, such as mapped weights.

        Nor those without elements, of which it says that elements lie 0 bytes apart.
        """
        names = [p.dtype for p in self.parameters]
        lent = [
            tensor(value, names[index]) if isinstance(value, np.ndarray) else value
            for index, value in enumerate(tensors)
        ]
        try:
            self._function(*lent)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._refused(tensors, error) from error

    def _refused(self, tensors: Sequence[Any], error: Exception) -> InputError:
        expected = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.parameters)
        given = ", ".join(
            f"{t.dtype}{list(t.shape)}" if hasattr(t, "shape") else str(t) for t in tensors
        )
        return InputError(
            f"operator {self.name!r} takes ({expected}), got ({given}): "
            f"{str(error).splitlines()[-1] if str(error) else type(error).__name__}"
        )


class ReferenceModule(Mapping[str, ReferenceFunction]):
    """The operators of a plan by name, compiled for this machine.

    Attributes
    ----------
    failures
        Why an operator is not there.
    stored
        Where the code of all operators is kept; None where it is not.
    """

    def __init__(
        self,
        functions: Mapping[str, ReferenceFunction],
        failures: Mapping[str, CompileError],
        stored: StoredReference | None = None,
    ) -> None:
        register_sorts()
        self._functions = dict(functions)
        self.failures = dict(failures)
        self.stored = stored

    def __getitem__(self, operator: str) -> ReferenceFunction:
        """The function of an operator.

        Raises
        ------
        CompileError
            If LLVM refused that operator.
        KeyError
            If no operator has that name.
        """
        if operator in self.failures:
            raise self.failures[operator]
        return self._functions[operator]

    def __iter__(self) -> Any:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def tensor(array: Any, dtype: str | None = None) -> Any:
    """Lend an array to the reference without a copy; convert once what is passed often.

    Parameters
    ----------
    array
        A dense array; a read-only one is lent as well, and must be read only.
    dtype
        The parameter's dtype, needed for ``bfloat16``, which numpy holds as uint16.

    Returns
    -------
    tvm_ffi.Tensor
        Accepted by every :class:`ReferenceFunction` in place of the array. Keeps `array` alive.
    """
    if not isinstance(array, np.ndarray):
        return array
    tvm_ffi = import_tvm_ffi()
    if dtype == "bfloat16":
        bits = _writable(array).view(np.uint16)
        lent = tvm_ffi.from_dlpack(bits)
        return lent._create_view(lent.shape, dtype="bfloat16")
    return tvm_ffi.from_dlpack(_writable(array))


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory without the read-only flag, which numpy's DLPack refuses."""
    if not array.size:
        apart = accumulate((*array.shape[:0:-1],), mul, initial=array.itemsize)
        return as_strided(array, array.shape, tuple(apart)[::-1])
    if array.flags.writeable:
        return array
    return np.asarray(_Memory(array))


class _Memory:
    """A new descriptor of an array's memory; holds the array so that the memory stays."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


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

    key: _Key
    symbols: Mapping[str, _Symbol]

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
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InputError(
                f"a stored reference: expected a key and a symbol for each operator ({error})"
            ) from error

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
