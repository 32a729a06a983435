"""Executes kernel text of CUDA C, HIP C and the Metal Shading Language on this processor.

It is no platform: platforms list its devices (:mod:`.description`) and open them (:mod:`.driver`).
``README.md`` says how, and what a launch gives a kernel of each language.

HIP-CPU, CuPBoP and gpuocelot do this for one language or none of these, and are packaged nowhere;
translating to OpenCL C would lose shuffles on the checkers there are, and test the translation.
"""
