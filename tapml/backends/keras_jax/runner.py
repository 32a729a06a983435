"""Loads a Keras model on JAX."""

from tapml.backends.keras_runner import loader

OWN_CALLS = "tapml.backends.keras_jax.own_calls"

load = loader("jax", "jax", OWN_CALLS)
