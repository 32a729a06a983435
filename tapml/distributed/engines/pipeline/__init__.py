"""Schedules of pipelines."""
