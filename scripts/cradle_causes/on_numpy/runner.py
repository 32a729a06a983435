"""Loads a Keras model on NumPy and plants a fault."""

from scripts.cradle_causes.patches import faulty_loader

load = faulty_loader("numpy")
