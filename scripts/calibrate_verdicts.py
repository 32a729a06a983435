"""Measures the ratio of right and wrong kernels, which the limits of tapml.compare.policy rest on.

    python scripts/calibrate_verdicts.py [--json FILE] [--seeds N] [--dtype NAME]

Cases are operators on random numbers, apart from any model. Each runs on LLVM and on every OpenCL
device; each is also made wrong in ways real kernels are (a shifted index, a lost term, ...).
Prints, per dtype, the largest ratio of a right kernel and the smallest of a wrong one;
docs/verdicts.md holds what it printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from tapml.compare.expectation import Expectation
from tapml.compare.formats import as_float64
from tapml.compare.judge import float_errors
from tapml.compare.movements import Movements
from tapml.compare.policy import Policy
from tapml.compare.sensitivity import Case, expect
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import ReferenceModule, compile_reference
from tapml.compiler.twin import compile_twins
from tapml.graph.plan import Operator
from tapml_targets.driver import DeviceDescription, TensorUse
from tapml_targets.errors import TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Parameter
from tapml_targets.platforms import load_driver_module
from tapml_targets.target import Target

Array = NDArray[Any]
Damage = Callable[[list[Array]], list[Array]]
op = relax.op


@dataclass(frozen=True)
class Trial:
    """One operator, how its inputs are drawn, and ways to be wrong given as other inputs."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    draw: Callable[[np.random.Generator, tuple[int, ...], int], Array]
    wrong: Mapping[str, Damage]


def normal(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Standard normal."""
    return generator.standard_normal(shape)


def positive(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Half normal: sums do not cancel."""
    return np.abs(generator.standard_normal(shape))


def activations(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Wide, with a few channels a hundred times larger, as a language model's are."""
    values = generator.standard_normal(shape) * (3.0 if position == 0 else 1.0)
    if position == 0:
        values[..., :: max(1, shape[-1] // 3)] *= 100.0
    return values


def small_weights(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Activations times weights as they are initialised."""
    scale = 1.0 if position == 0 else shape[0] ** -0.5
    return generator.standard_normal(shape) * scale


def positions(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Token positions, then inverse frequencies of rotary embedding."""
    if position == 0:
        return np.arange(shape[0], dtype=np.float64).reshape(shape)
    return 10000.0 ** (-np.arange(shape[-1]) / shape[-1]).reshape(shape)


def shift(position: int, axis: int = -1) -> Damage:
    """Index shifted by one in an input."""
    return lambda xs: [np.roll(x, 1, axis) if i == position else x for i, x in enumerate(xs)]


def lose(position: int, axis: int = -1, at: int = -1) -> Damage:
    """A term left out of a sum."""

    def damage(xs: list[Array]) -> list[Array]:
        copy = xs[position].copy()
        np.moveaxis(copy, axis, -1)[..., at] = 0
        return [copy if i == position else x for i, x in enumerate(xs)]

    return damage


def swap(first: int, second: int) -> Damage:
    """Two arguments of one shape exchanged."""

    def damage(xs: list[Array]) -> list[Array]:
        xs = list(xs)
        xs[first], xs[second] = xs[second], xs[first]
        return xs

    return damage


def transpose(position: int) -> Damage:
    """A square weight read the wrong way round."""
    return lambda xs: [np.ascontiguousarray(x.T) if i == position else x for i, x in enumerate(xs)]


def attention(q: Any, k: Any, v: Any) -> Any:
    """Softmax of scaled scores times values, one head."""
    scores = op.matmul(q, op.permute_dims(k)) * relax.const(0.125, q.ty.dtype)
    return op.matmul(op.nn.softmax(scores), v)


def trials(dtype: str) -> Iterator[Trial]:
    """The cases; none has a shape of the shipped models'."""
    lengths = (48, 320, 1536, 6144) if dtype == "float32" else (48, 320, 1536)
    for n in lengths:
        mm = {"shift": shift(0), "lost last term": lose(0), "lost first term": lose(0, at=0)}
        yield Trial(f"matmul {n}", ((24, n), (n, 40)), op.matmul, normal, mm)
        yield Trial(f"gemv {n}", ((1, n), (n, 200)), op.matmul, small_weights, mm)
        yield Trial(f"matmul positive {n}", ((24, n), (n, 40)), op.matmul, positive, mm)
        yield Trial(f"matmul outliers {n}", ((24, n), (n, 40)), op.matmul, activations, mm)
        yield Trial(
            f"softmax {n}",
            ((36, n),),
            op.nn.softmax,
            activations if n < 400 else normal,
            {"shift": shift(0), "lost last term": lose(0)},
        )
        for draw in (normal, activations):
            yield Trial(
                f"rms_norm {draw.__name__} {n}",
                ((20, n), (n,)),
                lambda x, w: op.nn.rms_norm(x, w, axes=[-1], epsilon=1e-5),
                draw,
                {"shift": shift(0), "weight shift": shift(1), "lost term": lose(0)},
            )
        yield Trial(
            f"layer_norm {n}",
            ((20, n), (n,), (n,)),
            lambda x, w, b: op.nn.layer_norm(x, w, b, axes=[-1]),
            normal,
            {"shift": shift(0), "swap": swap(1, 2)},
        )
        yield Trial(
            f"silu gate {n}",
            ((20, n), (20, n)),
            lambda g, u: op.multiply(op.nn.silu(g), u),
            activations,
            {"shift": shift(0), "swap": swap(0, 1)},
        )
        yield Trial(
            f"cumsum {n}",
            ((12, n),),
            lambda x: op.cumsum(x, axis=1),
            normal,
            {"shift": shift(0), "lost first term": lose(0, at=0)},
        )
        yield Trial(
            f"sum {n}",
            ((12, n),),
            lambda x: op.sum(x, axis=[1]),
            normal,
            {"lost last term": lose(0)},
        )
        yield Trial(f"exp {n}", ((12, n),), op.exp, normal, {"shift": shift(0)})
        yield Trial(
            f"gelu {n}",
            ((12, n),),
            op.nn.gelu,
            normal,
            {"shift": shift(0)},
        )
    yield Trial(
        "rotary angles",
        ((600, 1), (1, 24)),
        lambda p, f: op.concat([op.cos(op.multiply(p, f)), op.sin(op.multiply(p, f))], axis=1),
        positions,
        {"shift": shift(1), "position shift": shift(0, 0)},
    )
    yield Trial(
        "square matmul",
        ((96, 96), (96, 96)),
        op.matmul,
        normal,
        {"transposed": transpose(1), "swap": swap(0, 1)},
    )
    yield Trial("add", ((300, 70), (300, 70)), op.add, normal, {"shift": shift(0)})
    yield Trial(
        "residual",
        ((300, 70), (300, 70), (300, 70)),
        lambda a, b, c: op.add(op.multiply(op.subtract(a, b), c), a),
        normal,
        {"shift": shift(2), "swap": swap(0, 1)},
    )


def make_operator(trial: Trial, dtype: str) -> list[Operator]:
    """The trial's operators, fused as far as TVM fuses them."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"p{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(trial.shapes)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(trial.build(*variables)))
        builder.emit_func_output(result)
    module = builder.get()
    for apply in (
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ):
        try:
            module = apply(module)
        except tvm.error.InternalError as error:
            print(f"left out: {trial.name} in {dtype}: {str(error).splitlines()[-1]}")
            return []
    functions = [f for _, f in module.functions.items() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        print(f"left out: {trial.name} in {dtype}: it is {len(functions)} kernels")
        return []
    function = functions[0]
    parameters = tuple(
        Parameter(
            f"p{i}",
            tuple(int(extent) for extent in variable.ty.shape),
            str(variable.ty.dtype),
            "input" if i < len(trial.shapes) else "output",
        )
        for i, variable in enumerate(function.params)
    )
    text = tvm.ir.save_json(function)
    return [
        Operator(
            trial.name,
            hashlib.sha256(text.encode()).hexdigest(),
            parameters,
            (),
            text,
            function.script(),
            ("value",),
        )
    ]


def draw_inputs(trial: Trial, dtype: str, generator: np.random.Generator) -> list[Array]:
    """Raw inputs of a trial."""
    arrays = [trial.draw(generator, shape, i) for i, shape in enumerate(trial.shapes)]
    return [to_raw(array, dtype) for array in arrays]


def to_raw(values: Array, dtype: str) -> Array:
    """Numbers rounded to `dtype`, as raw bits."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, dtype)
    # Round to nearest even by hand: half of the discarded bits, plus the last kept one.
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Device:
    """One OpenCL device and the Libraries compiled for it."""

    def __init__(self, description: DeviceDescription, compiler: Compiler) -> None:
        self.name = f"{description.vendor_platform}"
        self.limits = description.limits
        self.driver = load_driver_module("opencl").open_device(description)
        self._compiler = compiler

    def run(self, operator: Operator, inputs: Sequence[Array], like: Array) -> Array:
        """The operator's output on this device."""
        library = self._compiler.compile(operator, Target("opencl", limits=self.limits))
        tensors = []
        with LoadedLibrary(self.driver, library) as loaded:
            for parameter, array in zip(
                operator.parameters, [*inputs, np.zeros_like(like)], strict=True
            ):
                buffer = self.driver.allocate(array.nbytes)
                self.driver.write(buffer, 0, memoryview(np.ascontiguousarray(array).tobytes()))
                tensors.append(TensorUse(buffer, 0, array.shape, parameter.dtype))
            loaded.call(operator.name, tensors)
            self.driver.finish()
            data = self.driver.read(tensors[-1].buffer, 0, like.nbytes)
            output = np.frombuffer(data, like.dtype).reshape(like.shape).copy()
            for tensor in tensors:
                self.driver.free(tensor.buffer)
        return output


def ratio(expectation: Expectation, raw: Array, dtype: str) -> float:
    """Largest error in units of sensitivity + ulp."""
    return float(float_errors(expectation.outputs[0], as_float64(raw, dtype)).max())


def measure(dtype: str, devices: Sequence[Device], seeds: int) -> list[dict[str, Any]]:
    """One row per kernel, right or wrong: what it is, its ratio, its limit."""
    rows: list[dict[str, Any]] = []
    policy = Policy()
    for trial in trials(dtype):
        for operator in make_operator(trial, dtype):
            reference = compile_reference([operator])
            twin = compile_twins([operator])
            for seed in range(seeds):
                generator = np.random.default_rng(seed)
                inputs = draw_inputs(trial, dtype, generator)
                subject = Subject(trial, operator, reference, twin, dtype)
                rows += _measure_one(subject, inputs, devices, policy)
    return rows


@dataclass(frozen=True)
class Subject:
    """A trial's operator, compiled for the host in its own dtype and in float64."""

    trial: Trial
    operator: Operator
    reference: ReferenceModule
    twin: ReferenceModule
    dtype: str


def _measure_one(
    subject: Subject, inputs: list[Array], devices: Sequence[Device], policy: Policy
) -> list[dict[str, Any]]:
    trial, operator, dtype = subject.trial, subject.operator, subject.dtype
    reference, twin = subject.reference, subject.twin
    shape = [int(extent) for extent in operator.parameters[-1].shape if isinstance(extent, int)]
    like = to_raw(np.zeros(shape), dtype)

    def on_host(given: Sequence[Array]) -> Array:
        output = np.zeros_like(like)
        reference[operator.name](*(np.ascontiguousarray(array) for array in given), output)
        return output

    right = on_host(inputs)
    case = Case(operator, inputs, [right], {}, [None] * len(inputs))
    expectation = expect(case, twin[operator.name], Movements(policy.seed), policy.repeats)
    limits = policy.limits_for(operator.name, dtype, expectation.terms)
    common = {"dtype": dtype, "operator": operator.name, "terms": expectation.terms}
    common |= {"passing": limits.passing, "degraded": limits.degraded}
    rows = [
        common | {"kernel": "right", "where": "LLVM", "ratio": ratio(expectation, right, dtype)}
    ]
    for device in devices:
        if dtype == "bfloat16" or (dtype == "float16" and "float16" not in device.limits.features):
            continue
        output = device.run(operator, inputs, right)
        found = ratio(expectation, output, dtype)
        rows.append(common | {"kernel": "right", "where": device.name, "ratio": found})
    for name, damage in trial.wrong.items():
        found = ratio(expectation, on_host(damage(list(inputs))), dtype)
        rows.append(common | {"kernel": name, "where": "LLVM", "ratio": found})
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> str:
    """Per dtype: the largest share of its limit a right kernel takes, and wrong ones' ratios."""
    lines = ["dtype      where                          right kernels   worst ratio   of its limit"]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        for where in dict.fromkeys(row["where"] for row in mine):
            right = [r for r in mine if r["kernel"] == "right" and r["where"] == where]
            if not right:
                continue
            worst = max(right, key=lambda r: r["ratio"] / r["passing"])
            lines.append(
                f"{dtype:10} {where:30} {len(right):13}   {worst['ratio']:11.3g}   "
                f"{worst['ratio'] / worst['passing']:6.2f}  ({worst['operator']})"
            )
        wrong = sorted(
            (r for r in mine if r["kernel"] != "right"), key=lambda r: r["ratio"] / r["passing"]
        )
        passed = [r for r in wrong if r["ratio"] <= r["passing"]]
        lines.append(f"{dtype:10} {len(wrong)} wrong kernels, {len(passed)} of them pass; nearest:")
        for row in wrong[:6]:
            share = row["ratio"] / row["passing"]
            lines.append(
                f"{'':10}   {row['operator']}, {row['kernel']}: ratio {row['ratio']:.3g}, "
                f"{share:.3g} times its limit"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--seeds", type=int, default=3, help="inputs per case (default 3)")
    parser.add_argument(
        "--dtype", action="append", choices=("float32", "float16", "bfloat16"), dest="dtypes"
    )
    options = parser.parse_args(arguments)
    np.seterr(all="ignore")
    rows: list[dict[str, Any]] = []
    with Compiler() as compiler:
        try:
            found = load_driver_module("opencl").list_devices()
        except TapmlError as error:
            print(f"no OpenCL here: {error}")
            found = []
        devices = [Device(d, compiler) for d in found if d.device_type != "checker"]
        for dtype in options.dtypes or ("float32", "float16", "bfloat16"):
            rows += measure(dtype, devices, options.seeds)
    print(summarise(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
