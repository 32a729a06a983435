"""JAX's meshes and TensorFlow's replicas against one device: right jobs, and jobs that sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.distributed.checking import check, open_pool
from tapml.distributed.results import Outcome

_JOBS = Path(__file__).parent.parent / "jobs"
_MESH_SUMMED = """
import jax

def distribute(loss, mesh):
    spec = jax.sharding.PartitionSpec

    def on_device(parameters, batch):
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        return jax.lax.pmean(value, "data"), jax.lax.psum(gradients, "data")

    return jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec(),
            check_vma=False,
        )
    )
"""
_MIRRORED_SUMMED = """
def distribute(model, optimizer, strategy):
    import tensorflow as tf

    def step(batch):
        with tf.GradientTape() as tape:
            value = loss(model, batch)
        values = [each.value for each in model.trainable_variables]
        gradients = tape.gradient(value, values)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step
"""


@pytest.mark.parametrize(
    ("engine", "summed", "first"),
    [
        ("jax", _MESH_SUMMED, "inner.bias"),
        ("mirrored", _MIRRORED_SUMMED, "sequential/dense/kernel"),
    ],
)
def test_a_right_job_is_equal_and_a_sum_is_named(
    tmp_path: Path, engine: str, summed: str, first: str
) -> None:
    source = _JOBS / f"{'mesh' if engine == 'jax' else engine}.py"
    options = {"gradients": ["jit"], "parameters": ["sharded"], "mesh": ["data+model"]}
    chosen = options if engine == "jax" else None
    wrong_job = tmp_path / "summed.py"
    wrong_job.write_text(source.read_text() + summed)
    with open_pool([engine]) as pool:
        right = check(source, engines=[engine], worlds=[2], options=chosen, pool=pool)
        wrong = check(wrong_job, engines=[engine], worlds=[2], pool=pool)

    (equal,) = right.results
    assert equal.outcome is Outcome.EQUAL, equal.reason
    assert equal.precision == "float64"
    assert {"start", "gradient", "update", "prediction"} <= equal.compared.keys()
    (result,) = wrong.results
    assert (result.outcome, result.phase, result.tensor) == ("inconsistent", "gradient", first)
    assert result.mistake == "gradients are summed over the ranks, not averaged"
    assert result.ratio == pytest.approx(2)
