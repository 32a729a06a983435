"""A trial's operator, lowered as a model's is, and run on this machine's devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tvm
from tvm import relax

from scripts.calibration.damage import Array
from scripts.calibration.trials import Trial
from tapml.compiler.compiler import Compiler
from tapml.importing.importer import import_relax
from tapml.plan.graph_plan import CallStep, GraphPlan, Operator, ViewStep
from tapml.verdicts.operator_class import traits_of
from tapml_targets.driver import DeviceDescription, TensorUse
from tapml_targets.errors import TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.platforms import load_driver_module
from tapml_targets.target import Target

Run = Callable[[Sequence[Array], Array], Array]
"""The output for some inputs in parameter order, and an array of its shape and dtype."""


def make_operator(trial: Trial, dtype: str) -> tuple[Operator, tuple[int, ...]] | None:
    """The trial's operator, and the trial's inputs in the operator's parameter order.

    None, with a printed line, if TVM cannot lower it in this dtype to one kernel.
    """
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"p{index}", relax.TensorType(shape, dtype))
        for index, shape in enumerate(trial.shapes)
    ]
    try:
        with builder.function("main", variables):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(trial.build(*variables)))
            builder.emit_func_output(result)
        plan = import_relax(builder.get()).plan
    except (TapmlError, tvm.error.InternalError) as error:
        print(f"left out: {trial.name} in {dtype}: {str(error).splitlines()[-1]}")
        return None
    entry = plan.entries["main"]
    # A scan comes with copies that transpose its input.
    calls = [call for call in entry.calls if len(entry.calls) == 1 or _computes(plan, call)]
    if len(calls) != 1:
        print(f"left out: {trial.name} in {dtype}: it is {len(calls)} kernels")
        return None
    operator = plan.operators[calls[0].operator]
    sources = {step.result: step.source for step in entry.steps if isinstance(step, ViewStep)}
    read = [sources.get(name, name) for name in calls[0].arguments[: len(operator.read)]]
    return operator, tuple(list(entry.inputs).index(name) for name in read)


def _computes(plan: GraphPlan, call: CallStep) -> bool:
    traits = traits_of(plan.operators[call.operator])
    return any(output.operator_class != "exact" for output in traits)


class Device:
    """One OpenCL device and the Libraries compiled for it."""

    def __init__(self, description: DeviceDescription, compiler: Compiler) -> None:
        self.name = f"{description.vendor_platform}"
        self.limits = description.limits
        self._driver = load_driver_module("opencl").open_device(description)
        self._compiler = compiler

    def computes(self, dtype: str) -> bool:
        """Whether kernels in `dtype` run here."""
        return dtype == "float32" or dtype in self.limits.features

    @contextmanager
    def loaded(self, operator: Operator) -> Iterator[Run]:
        """The operator, ready to be run several times."""
        library = self._compiler.compile(operator, Target("opencl", limits=self.limits))
        with LoadedLibrary(self._driver, library) as loaded:

            def run(inputs: Sequence[Array], like: Array) -> Array:
                return self._run(loaded, operator, inputs, like)

            yield run

    def _run(
        self, loaded: LoadedLibrary, operator: Operator, inputs: Sequence[Array], like: Array
    ) -> Array:
        tensors = []
        for parameter, array in zip(
            operator.parameters, [*inputs, np.zeros_like(like)], strict=True
        ):
            buffer = self._driver.allocate(array.nbytes)
            self._driver.write(buffer, 0, memoryview(np.ascontiguousarray(array).tobytes()))
            tensors.append(TensorUse(buffer, 0, array.shape, parameter.dtype))
        loaded.call(operator.name, tensors)
        self._driver.finish()
        data = self._driver.read(tensors[-1].buffer, 0, like.nbytes)
        output = np.frombuffer(data, like.dtype).reshape(like.shape).copy()
        for tensor in tensors:
            self._driver.free(tensor.buffer)
        return output


def open_devices(compiler: Compiler) -> list[Device]:
    """The OpenCL devices here, without checkers."""
    try:
        found = load_driver_module("opencl").list_devices()
    except TapmlError as error:
        print(f"no OpenCL here: {error}")
        return []
    return [Device(d, compiler) for d in found if d.device_type != "checker"]
