"""Keras on JAX."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="Keras on JAX",
    formats=(".keras",),
    packages={"keras": "keras>=3.15,<4", "jax": "jax>=0.10"},
    variables={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    without=("tensorflow",),
)
