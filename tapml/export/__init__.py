"""Suites as plain pytest files that run without tapml's session or the model."""
