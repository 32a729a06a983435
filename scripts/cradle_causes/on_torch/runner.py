"""Loads a Keras model on PyTorch and plants a fault."""

from scripts.cradle_causes.patches import faulty_loader

load = faulty_loader("torch")
