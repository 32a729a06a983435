"""Repro folders: one failing test that anyone replays with the base install and a driver."""
