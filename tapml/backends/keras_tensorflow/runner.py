"""Loads a Keras model on TensorFlow."""

from tapml.backends.keras_runner import loader

OWN_CALLS = "tapml.backends.keras_tensorflow.own_calls"

load = loader("tensorflow", "tensorflow", OWN_CALLS)
