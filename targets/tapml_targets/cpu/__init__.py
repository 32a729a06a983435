"""The cpu platform."""
