"""Importing: turns a model into a GraphPlan that records the origin of every operator."""
