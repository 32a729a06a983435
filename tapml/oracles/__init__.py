"""Oracles: what an output should be in float64, and how far correct arithmetic may be from it."""
