"""Keras on NumPy."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="Keras on NumPy",
    formats=(".keras",),
    packages={"keras": "keras>=3.15,<4", "scipy": "scipy", "jax": "jax>=0.10"},
    variables={"KERAS_BACKEND": "numpy", "JAX_PLATFORMS": "cpu"},
    without=("tensorflow",),
)
