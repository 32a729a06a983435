"""Runs a Keras job under MirroredStrategy on logical CPUs, all of which this process drives.

A job defines ``model()``, a built Keras model, ``batch()``, and ``loss(model, batch)``, the mean
over the samples it gets. It may define ``predict(model, batch)``, ``RATE``, the learning rate of
plain SGD (default: 0.1), and ``distribute(model, optimizer, strategy)``: its own function of one
replica's batch that takes the step.

SGD's gradient is its update over the rate; MirroredStrategy shows no other reduced gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from tapml.distributed import array_jobs
from tapml.distributed.array_jobs import Array, largest, plain, record, unpack
from tapml.distributed.job_file import Job, kind_of, load_job
from tapml.isolate.member import Member
from tapml_targets.errors import InputError, RefusedError, WrongJobError

REQUIRED: Final = {"model": "", "batch": "", "loss": "model, batch"}
OPTIONAL: Final = {"predict": "model, batch", "distribute": "model, optimizer, strategy"}


def prepare(_: Member, payload: dict[str, Any]) -> dict[str, Any]:
    """Read the job: a job of a group of one."""

    def weights_of(job: Job) -> list[tuple[str, Any, bool]]:
        model = _model(job)
        return [(name, np.array(each), each.trainable) for name, each in _variables(model).items()]

    return array_jobs.prepare(payload, REQUIRED, OPTIONAL, weights_of)


def run(_: Member, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Train on logical devices; the answers of all. One device has no strategy."""
    world, alone = payload["world"], payload["engine"] is None
    job, dtype = _begin(payload, world)
    strategy = None
    if not alone:
        devices = [f"CPU:{number}" for number in range(world)]
        # The strategy's usual collectives fail on several logical CPUs.
        reduction = tf.distribute.ReductionToOneDevice()
        strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
    with strategy.scope() if strategy is not None else tf.device("CPU:0"):
        model = _built(job, payload, dtype)
        optimizer = keras.optimizers.SGD(_rate(job))
        optimizer.build(model.trainable_variables)
    answers: list[dict[str, Any]] = [
        {"records": [], "not_compared": {}, "random": False} for _ in range(world)
    ]
    for name, variable in _variables(model).items():
        for rank, value in enumerate(_values(variable, world)):
            answers[rank]["records"].append(record("start", 0, name, value, -1))
    take_step = _step(job, model, optimizer, strategy)
    started = time.monotonic()
    for step, parts in enumerate(payload["steps"], 1):
        before = {name: _values(each, world) for name, each in _variables(model).items()}
        batches = [_cast(unpack(packed), dtype) for packed, _ in parts]
        with job.calling("step()" if strategy is None else "the replicas' step"):
            try:
                take_step(batches)
            except (tf.errors.OpError, NotImplementedError) as error:
                if strategy is None:
                    raise
                raise RefusedError(f"{type(error).__name__}: {error}".split("\n", 1)[0]) from error
        for name, variable in _variables(model).items():
            values = zip(_values(variable, world), before[name], strict=True)
            for rank, (after, earlier) in enumerate(values):
                _add(answers[rank], step, name, variable.trainable, after, earlier, _rate(job))
    seconds = time.monotonic() - started
    for rank, (packed, rows) in enumerate(payload["steps"][-1]):
        batch = _cast(unpack(packed), dtype)
        if job.has("predict"):
            with job.calling("predict()"):
                found = job.module.predict(model, batch)
            for index, value in enumerate(array_jobs.predictions_of(job, found)):
                name = "(prediction)" if not index else f"(prediction)[{index}]"
                made = record("prediction", step, name, value, index)
                answers[rank]["records"].append(made | {"placement": "rows", "rows": rows})
    for answer in answers:
        answer |= {"seconds": seconds, "dtypes": {}}
        answer["not_compared"]["hidden states"] = "layers of Keras are not listened to"
    return answers


def slice_gradients(_: Member, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The gradients of each part of the samples alone, on one device."""
    job, dtype = _begin(payload, 1)
    model = _built(job, payload, dtype)
    found = []
    for packed in payload["batches"]:
        batch = _cast(unpack(packed), dtype)
        with tf.GradientTape() as tape:
            loss = job.module.loss(model, batch)
        values = [each.value for each in model.trainable_variables]
        gradients = tape.gradient(loss, values)
        names = [name for name, each in _variables(model).items() if each.trainable]
        pairs = zip(names, gradients, strict=True)
        found.append({name: plain(value) for name, value in pairs if value is not None})
    return found


def _begin(payload: Mapping[str, Any], devices: int) -> tuple[Job, str | None]:
    (physical, *_) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(physical, logical)
    dtype = "float64" if payload["precision"] == "float64" else None
    if dtype is not None:
        keras.config.set_floatx(dtype)
    job = load_job(Path(payload["job"]), REQUIRED, OPTIONAL)
    array_jobs.seed_all()
    return job, dtype


def _model(job: Job) -> Any:
    keras.utils.set_random_seed(array_jobs.SEED)
    with job.calling("model()"):
        model = job.module.model()
    if not isinstance(model, keras.Model):
        raise InputError(
            f"{job.path.name}: model() must return a keras.Model, got a {type(model).__name__}"
        )
    if not model.built:
        raise InputError(f"{job.path.name}: model() must be built: give it a keras.Input")
    return model


def _built(job: Job, payload: Mapping[str, Any], dtype: str | None) -> Any:
    """The model with the weights that were sent."""
    model = _model(job)
    generator = np.random.default_rng(payload.get("perturb", 0))
    for name, variable in _variables(model).items():
        if name not in payload["weights"]:
            raise InputError(f"{job.path.name}: model() gave {name} in one process only")
        value = _cast(unpack(payload["weights"][name]), dtype)
        if payload.get("perturb"):
            value = array_jobs.perturbed(value, generator, payload["roundoff"])
        variable.assign(value)
    return model


def _step(job: Job, model: Any, optimizer: Any, strategy: Any) -> Callable[[list[Any]], None]:
    """Takes the step of all replicas, whose batches are given."""

    def on_replica(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = job.module.loss(model, batch)
            # The strategy adds gradients up.
            loss /= 1 if strategy is None else strategy.num_replicas_in_sync
        values = [each.value for each in model.trainable_variables]
        optimizer.apply_gradients(
            zip(tape.gradient(loss, values), model.trainable_variables, strict=True)
        )

    if strategy is None:
        return lambda batches: on_replica(batches[0])
    inner = on_replica
    if job.has("distribute"):
        with job.calling("distribute()"):
            inner = job.module.distribute(model, optimizer, strategy)
        if not callable(inner):
            raise WrongJobError(
                f"{job.path.name}: distribute() must return a function of one replica's batch, got "
                f"{kind_of(inner)}"
            )

    @tf.function  # type: ignore[untyped-decorator]
    def together(batch: Any) -> None:
        strategy.run(inner, args=(batch,))

    def take(batches: list[Any]) -> None:
        tensors = [array_jobs.map_arrays(each, tf.convert_to_tensor) for each in batches]
        together(
            strategy.experimental_distribute_values_from_function(
                lambda context: tensors[context.replica_id_in_sync_group]
            )
        )

    return take


def _variables(model: Any) -> dict[str, Any]:
    """Weights by path; moving statistics too, no states of random generators."""
    return {each.path: each for each in model.weights if "seed_generator" not in each.path}


def _values(variable: Any, world: int) -> list[Array]:
    """What each replica has of a variable."""
    inner = variable.value
    values = getattr(inner, "values", None)
    if values is None or callable(values):
        return [plain(inner)] * world
    return [plain(each) for each in values]


def _add(
    answer: dict[str, Any],
    step: int,
    name: str,
    learns: bool,
    after: Array,
    earlier: Array,
    rate: float,
) -> None:
    records = answer["records"]
    if not learns:
        records.append(record("buffer", step, name, after, len(records)))
        return
    changed = after.astype(np.float64) - earlier.astype(np.float64)
    made = record("update", step, name, changed, len(records))
    made["weight"] = largest(after)
    gradient = record("gradient", step, name, changed / -rate, len(records))
    gradient["weight"] = largest(after) / rate
    records += [gradient, made]


def _rate(job: Job) -> float:
    rate = job.constant("RATE", 0.1)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < math.inf:
        raise InputError(f"{job.path.name}: RATE must be a number above 0, got {rate!r}")
    return float(rate)


def _cast(tree: Any, dtype: str | None) -> Any:
    if dtype is None:
        return tree
    return array_jobs.map_arrays(
        tree, lambda each: each.astype(dtype) if each.dtype.kind == "f" else each
    )
