"""Diagnosis of one failing kernel: the inner step, the wrong elements, the inputs, the cause."""
