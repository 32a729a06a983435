"""Relations, one file each; :func:`tapml.invariants.relation.relations` finds them by file."""
