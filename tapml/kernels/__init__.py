"""Hand-written kernels: read, checked, replayed, watched."""
