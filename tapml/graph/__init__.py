"""The compute graph: a model becomes a GraphPlan that knows where each operator came from.

Importing this package imports neither torch nor TVM; importing a model does.
"""
