"""Loads a Keras model on JAX."""

from tapml.backends.keras_runner import loader

load = loader("jax", "jax")
