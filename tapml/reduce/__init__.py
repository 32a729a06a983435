"""Reduces a failing test while it keeps failing."""
