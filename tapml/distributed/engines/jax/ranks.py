"""Runs a job of JAX on a mesh of host devices, all of which this process drives.

A job defines ``parameters()``, a tree of arrays, ``batch()``, and ``loss(parameters, batch)``, the
mean over samples. It may define ``update(parameters, gradients)`` (default: SGD, 0.1),
``predict(parameters, batch)``, and ``distribute(loss, mesh)``: its own function of parameters and
batch that gives loss and gradients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jax as untyped_jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from tapml.distributed import array_jobs
from tapml.distributed.array_jobs import Array, digest, largest, leaves, plain, record, unpack
from tapml.distributed.job_file import Job, kind_of, load_job
from tapml.isolate.member import Member
from tapml_targets.errors import InputError, RefusedError, WrongJobError

# Many of its functions have no types.
jax: Any = untyped_jax
PartitionSpec: Any = jax.sharding.PartitionSpec
REQUIRED: Final = {"parameters": "", "batch": "", "loss": "parameters, batch"}
OPTIONAL: Final = {
    "update": "parameters, gradients",
    "predict": "parameters, batch",
    "distribute": "loss, mesh",
}
LEARNING_RATE: Final = 0.1
DATA: Final = "data"


def prepare(_: Member, payload: dict[str, Any]) -> dict[str, Any]:
    """Read the job: a job of a group of one."""

    def weights_of(job: Job) -> list[tuple[str, Any, bool]]:
        with job.calling("parameters()"):
            tree = job.module.parameters()
        return [(name, np.array(value), True) for name, value in leaves(tree)]

    return array_jobs.prepare(payload, REQUIRED, OPTIONAL, weights_of)


def run(_: Member, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Train on a mesh; the answers of all devices."""
    world, options = payload["world"], payload["options"]
    job, dtype, tree = _begin(payload, world)
    mesh = _mesh(world, options.get("mesh", DATA))
    parameters = _placed(tree, mesh, options.get("parameters", "replicated"))
    gradient_of = _gradient_function(job, mesh, options.get("gradients", "jit"))
    answers: list[dict[str, Any]] = [
        {"records": [], "not_compared": {}, "random": False} for _ in range(world)
    ]
    seen: dict[str, list[Any]] = {}
    _add_tree(answers, "start", 0, parameters)
    started = time.monotonic()
    for step, parts in enumerate(payload["steps"], 1):
        batch = _batch(parts, dtype)
        if payload["observe"]:
            seen |= dict(_formats(jax.make_jaxpr(job.module.loss)(parameters, batch).jaxpr))
        placed = _by_samples(batch, mesh)
        with job.calling("loss()"):
            try:
                found = gradient_of(parameters, placed)
            except (ValueError, TypeError, NotImplementedError) as error:
                if world == 1:
                    raise
                raise RefusedError(f"{type(error).__name__}: {_first_line(error)}") from error
        loss, gradients = _loss_and_gradients(job, found, parameters)
        before = {name: _shards(value) for name, value in leaves(parameters)}
        with job.calling("update()"):
            parameters = _update(job, parameters, gradients)
        _add_arrays(answers, "forward", step, "(loss)", loss)
        _add_tree(answers, "gradient", step, gradients)
        for name, value in leaves(parameters):
            _add_update(answers, step, name, value, before[name])
    seconds = time.monotonic() - started
    if job.has("predict"):
        with job.calling("predict()"):
            found = jax.jit(job.module.predict)(parameters, placed)
        array_jobs.predictions_of(job, found)
        _add_rows(answers, len(payload["steps"]), found, array_jobs.count_samples(batch))
    for answer in answers:
        answer |= {"seconds": seconds, "dtypes": seen}
        answer["not_compared"]["hidden states"] = "functions of JAX have no modules"
    return answers


def slice_gradients(_: Member, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The gradients of each part of the samples alone, on one device."""
    job, dtype, tree = _begin(payload, 1)
    parameters = array_jobs.map_arrays(tree, jax.numpy.asarray)
    gradient = jax.jit(jax.grad(job.module.loss))
    found = []
    for packed in payload["batches"]:
        batch = _cast(unpack(packed), dtype)
        found.append({name: plain(value) for name, value in leaves(gradient(parameters, batch))})
    return found


def _begin(payload: Mapping[str, Any], devices: int) -> tuple[Job, str | None, Any]:
    """The job, the float64 twin's format, and the parameters as they were sent."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    twin = payload["precision"] == "float64"
    if twin:
        jax.config.update("jax_enable_x64", True)
    job = load_job(Path(payload["job"]), REQUIRED, OPTIONAL)
    array_jobs.seed_all()
    dtype = "float64" if twin else None
    sent = {name: unpack(value) for name, value in payload["weights"].items()}
    with job.calling("parameters()"):
        built = job.module.parameters()
    names = iter([name for name, _ in leaves(built)])
    generator = np.random.default_rng(payload.get("perturb", 0))

    def given(_: Any) -> Array:
        name = next(names)
        if name not in sent:
            raise InputError(f"{job.path.name}: parameters() gave {name} in one process only")
        value: Array = _cast(sent[name], dtype)
        if payload.get("perturb"):
            value = array_jobs.perturbed(value, generator, payload["roundoff"])
        return value

    return job, dtype, array_jobs.map_arrays(built, given)


def _cast(tree: Any, dtype: str | None) -> Any:
    if dtype is None:
        return tree
    return array_jobs.map_arrays(
        tree, lambda each: each.astype(dtype) if each.dtype.kind == "f" else each
    )


def _batch(parts: list[Any], dtype: str | None) -> Any:
    """The whole batch, from the parts of all devices in order."""
    trees = [_cast(unpack(packed), dtype) for packed, _ in parts]
    counts = [array_jobs.count_samples(each) for each in trees]
    flat = [[value for _, value in leaves(each)] for each in trees]
    joined = iter(
        [
            np.concatenate(pieces) if pieces[0].shape and pieces[0].shape[0] == counts[0]
            else pieces[0]
            for pieces in zip(*flat, strict=True)
        ]
    )  # fmt: skip
    return array_jobs.map_arrays(trees[0], lambda _: next(joined))


def _mesh(world: int, kind: str) -> Mesh:
    shape = (world,) if kind == DATA else (world // 2, 2)
    names = tuple(kind.split("+"))
    devices = np.array(jax.devices()[:world]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def _placed(tree: Any, mesh: Mesh, how: str) -> Any:
    """Parameters on the mesh: whole, or cut along the first dimension that divides."""
    axis = mesh.axis_names[-1]
    size = mesh.shape[axis]

    def place(value: Array) -> Any:
        spec = PartitionSpec()
        if how == "sharded":
            whole = [number for number, each in enumerate(value.shape) if each % size == 0]
            if whole:
                spec = PartitionSpec(*[None] * whole[0], axis)
        return jax.device_put(value, NamedSharding(mesh, spec))

    return array_jobs.map_arrays(tree, place)


def _by_samples(batch: Any, mesh: Mesh) -> Any:
    """A batch on the mesh, its samples shared out along the dimension for data."""
    count = array_jobs.count_samples(batch)

    def place(value: Array) -> Any:
        counts = bool(value.shape) and value.shape[0] == count
        spec = PartitionSpec(DATA) if counts else PartitionSpec()
        return jax.device_put(value, NamedSharding(mesh, spec))

    return array_jobs.map_arrays(batch, place)


def _gradient_function(job: Job, mesh: Mesh, how: str) -> Any:
    """Loss and gradients of parameters and batch."""
    loss = job.module.loss
    if how == "own":
        with job.calling("distribute()"):
            made = job.module.distribute(loss, mesh)
        if not callable(made):
            raise WrongJobError(
                f"{job.path.name}: distribute() must return a function of parameters and batch, "
                f"got {kind_of(made)}"
            )
        return made
    if how == "jit":
        return jax.jit(jax.value_and_grad(loss))

    def on_device(parameters: Any, batch: Any) -> Any:
        found = jax.value_and_grad(loss)(parameters, batch)
        return jax.lax.pmean(found, DATA)

    specs = (PartitionSpec(), PartitionSpec(DATA))
    return jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
        )
    )


def _loss_and_gradients(job: Job, found: Any, parameters: Any) -> tuple[Any, Any]:
    """What a function of the job's gave. Raises InputError if that is something else."""
    is_pair = isinstance(found, tuple | list) and len(found) == 2
    if not is_pair or jax.tree.structure(found[1]) != jax.tree.structure(parameters):
        raise WrongJobError(
            f"{job.path.name}: the function that distribute() gives must return (loss, gradients), "
            f"the gradients in the form of parameters(), got {kind_of(found)}"
        )
    return found[0], found[1]


def _update(job: Job, parameters: Any, gradients: Any) -> Any:
    if job.has("update"):
        changed = jax.jit(job.module.update)(parameters, gradients)
        if jax.tree.structure(changed) != jax.tree.structure(parameters):
            raise WrongJobError(
                f"{job.path.name}: update() must return the parameters in the form of "
                f"parameters(), got {kind_of(changed)}"
            )
        return changed
    return jax.tree.map(lambda each, slope: each - LEARNING_RATE * slope, parameters, gradients)


def _shards(value: Any) -> list[tuple[int, tuple[int, ...], Array]]:
    """(device, where its part begins, the part) of an array on the mesh."""
    found = []
    for rank, shard in enumerate(sorted(value.addressable_shards, key=lambda each: each.device.id)):
        offset = tuple(each.start or 0 for each in shard.index)
        found.append((rank, offset, plain(shard.data)))
    return found


def _add_tree(answers: list[dict[str, Any]], phase: str, step: int, tree: Any) -> None:
    for name, value in leaves(tree):
        _add_arrays(answers, phase, step, name, value)


def _add_arrays(
    answers: list[dict[str, Any]], phase: str, step: int, name: str, value: Any
) -> None:
    for rank, offset, part in _shards(value):
        made = record(phase, step, name, part, len(answers[rank]["records"]))
        answers[rank]["records"].append(made | _place(value, offset, part))


def _add_update(
    answers: list[dict[str, Any]],
    step: int,
    name: str,
    value: Any,
    before: list[tuple[int, tuple[int, ...], Array]],
) -> None:
    for (rank, offset, part), (_, _, earlier) in zip(_shards(value), before, strict=True):
        changed = part.astype(np.float64) - earlier.astype(np.float64)
        made = record("update", step, name, changed, len(answers[rank]["records"]))
        made["weight"] = largest(part)
        answers[rank]["records"].append(made | _place(value, offset, part))


def _add_rows(answers: list[dict[str, Any]], step: int, tree: Any, samples: int) -> None:
    """Predictions, each device with its samples."""
    for index, (_, value) in enumerate(leaves(tree)):
        name = "(prediction)" if not index else f"(prediction)[{index}]"
        for rank, offset, part in _shards(value):
            if not part.shape or value.shape[0] != samples:
                answers[rank]["not_compared"][name] = "its first dimension does not count samples"
                continue
            made = record("prediction", step, name, part, index)
            rows = list(range(offset[0], offset[0] + part.shape[0]))
            answers[rank]["records"].append(made | {"placement": "rows", "rows": rows})


def _place(value: Any, offset: tuple[int, ...], part: Array) -> dict[str, Any]:
    if part.shape == tuple(value.shape):
        return {"placement": "whole", "digest": digest(part)}
    return {"placement": "shard", "shape": list(value.shape), "offset": list(offset)}


def _formats(program: Any) -> Iterator[tuple[str, list[Any]]]:
    """Floating-point formats that a program's operations give, with the first that gives each."""
    for equation in program.eqns:
        for variable in equation.outvars:
            dtype = np.dtype(getattr(variable.aval, "dtype", "i4"))
            if jax.numpy.issubdtype(dtype, np.floating):
                epsilon = float(jax.numpy.finfo(dtype).eps)
                yield str(dtype), [epsilon, str(equation.primitive)]
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from _formats(inner)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
