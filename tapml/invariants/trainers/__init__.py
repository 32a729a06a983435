"""Callbacks that record or watch what a trainer of another library trains; a file for each."""
