"""The Khronos validation layer; see :mod:`tapml_targets.checker`."""

from tapml_targets.vulkan_loader.validation import *  # noqa: F403 - all that it names is taken over
