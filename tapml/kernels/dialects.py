"""The language of hand-written kernels for a platform.

Platforms whose kernels are machine code have none: a shared object cannot be edited and watched.
"""

from __future__ import annotations

from tapml_targets.errors import InputError
from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.platforms import kernel_language, kernel_languages, platform_names


def language_of(platform: str) -> KernelLanguage:
    """The language of hand-written kernels for a platform.

    Raises
    ------
    InputError
        If there is no such platform, or it takes no source text.
    SetupError
        If it belongs to another distribution and cannot be imported.
    """
    known = ", ".join(kernel_languages())
    if platform not in platform_names():
        raise InputError(f"unknown target {platform[:40]!r}; kernels can be written for {known}")
    language = kernel_language(platform)
    if language is None:
        raise InputError(
            f"the target {platform!r} loads machine code, so it takes no hand-written kernel: "
            f"kernels can be written for {known}"
        )
    return language
