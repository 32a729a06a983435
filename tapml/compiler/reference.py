"""The trusted platform: a plan's operators compiled by LLVM into this process.

One module for all operators, called on numpy arrays without copies. Carving is measured as a ratio
against this, so a call does nothing but hand the pointers over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapml.compiler.native_imports import import_tvm
from tapml.graph.plan import GraphPlan, Operator
from tapml_targets.codegen.host_function import calls_runtime, for_host
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.cpu.loader import import_tvm_ffi
from tapml_targets.errors import CompileError, InputError, TapmlError
from tapml_targets.library import Parameter

if TYPE_CHECKING:
    from tapml.compiler.host_build import HostFunction
    from tapml.compiler.stored_reference import StoredReference


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
            raise self._refused(tensors, error) from error

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
        """Arrays that numpy will not lend as they are: read-only ones, such as mapped weights."""
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
    if array.flags.writeable:
        return array
    return np.asarray(_Memory(array))


class _Memory:
    """An array's memory described anew; holds the array so that the memory stays."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def compile_reference(plan: GraphPlan | Iterable[Operator]) -> ReferenceModule:
    """Compile operators for the CPU of this process.

    Parameters
    ----------
    plan
        A plan, whose operators are taken, or operators.

    Returns
    -------
    ReferenceModule
        A mapping from operator name to function. An operator that LLVM refuses raises its
        CompileError when it is looked up; the others work.
    """
    operators = plan.operators.values() if isinstance(plan, GraphPlan) else plan
    return build_for_this_process(
        [(_source(operator), operator.parameters) for operator in operators], for_host
    )


def _source(operator: Operator) -> OperatorSource:
    return OperatorSource(
        operator.name, operator.function_for("cpu"), operator.parameters, operator.symbols
    )


def build_for_this_process(
    sources: Sequence[tuple[OperatorSource, tuple[Parameter, ...]]], edit: Callable[[str], str]
) -> ReferenceModule:
    """Compile `sources`, each function's JSON changed by `edit`, with the parameters they show."""
    import_tvm()
    from tapml.compiler.host_build import HostFunction, build_host_functions
    from tapml.compiler.stored_reference import StoredReference

    failures: dict[str, CompileError] = {}
    functions: dict[str, HostFunction] = {}
    for index, (source, _) in enumerate(sources):
        try:
            text = edit(source.function)
        except TapmlError as error:
            failures[source.name] = CompileError(f"operator {source.name!r}: {error}")
            continue
        # Two operators may differ only in characters that C does not have.
        functions[source.name] = HostFunction(f"{source.identifier}__{index}", text)
    built = build_host_functions(functions)
    callables = {
        source.name: ReferenceFunction(
            source.name, parameters, source.symbols, built.functions[source.name]
        )
        for source, parameters in sources
        if source.name in built.functions
    }
    stored = None
    # Packed functions are found where TVM is imported, and not by its runtime alone.
    packed = any(calls_runtime(each.function) for each in functions.values())
    if built.key and not failures and not packed:
        stored = StoredReference(built.key, {name: f.symbol for name, f in functions.items()})
    return ReferenceModule(callables, {**failures, **built.failures}, stored)
