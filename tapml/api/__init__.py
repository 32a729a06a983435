"""The Python API: modules, devices, tensors and functions, as in figure 6 of the paper."""
