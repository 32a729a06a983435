"""The compute graph: from a torch module or a Relax module to a GraphPlan."""
