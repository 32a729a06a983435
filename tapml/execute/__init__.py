"""Runs a GraphPlan: every operator on the reference or on a device, values moved when needed."""
