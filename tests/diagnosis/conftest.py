"""Devices and compiler of these tests."""

from tests.hazards.fixtures import compiler, intel, pocl

__all__ = ["compiler", "intel", "pocl"]
