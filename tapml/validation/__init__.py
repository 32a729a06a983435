"""Validation of a model or module, operator by operator and end to end, on one or more devices."""
