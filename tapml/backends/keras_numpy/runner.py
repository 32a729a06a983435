"""Loads a Keras model on NumPy."""

from tapml.backends.keras_runner import loader

load = loader("numpy", "numpy")
