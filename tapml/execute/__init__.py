"""Runs a GraphPlan: each operator on the reference or a device, with values moved as needed."""
