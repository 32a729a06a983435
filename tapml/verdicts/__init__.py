"""Verdicts: error metrics, policies, and whether a result is right, with the numbers."""
