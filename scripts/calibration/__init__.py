"""How far right and wrong kernels are from float64: what the limits of verdicts rest on."""
