"""Loads a Keras model on PyTorch."""

from tapml.backends.keras_runner import loader

load = loader("torch", "torch")
