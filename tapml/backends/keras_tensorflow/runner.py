"""Loads a Keras model on TensorFlow."""

from tapml.backends.keras_runner import loader

load = loader("tensorflow", "tensorflow")
