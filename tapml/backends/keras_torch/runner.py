"""Loads a Keras model on PyTorch."""

from tapml.backends.keras_runner import loader

OWN_CALLS = "tapml.backends.keras_torch.own_calls"

load = loader("torch", "torch", OWN_CALLS)
