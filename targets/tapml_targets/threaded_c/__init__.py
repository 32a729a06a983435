"""What the platforms share whose kernels are C with threads, blocks and shared memory.

Their languages are nearly one, and TVM has one printer for them
(:mod:`tapml_targets.codegen.threaded_c`).
"""
