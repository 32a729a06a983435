"""Localization: which step inside a wrong operator, where in its tensors, from which input, why."""
