"""The opencl platform."""
