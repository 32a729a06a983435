"""Code for this platform: TVM's C of another one under its plainest schedule, in other words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tapml_abacus.language import LANGUAGE
from tapml_targets.codegen.lowering import load_function
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.library import Library
from tapml_targets.opencl.codegen import generate as generate_opencl
from tapml_targets.target import Target

_WORDS: Final = (
    (re.compile(r"^\s*#pragma .*\n|^// Function: .*\n|^__kernel .*\);\n", re.MULTILINE), ""),
    (re.compile(r"__kernel void (?:__attribute__\(\(.*?\)\)\) )?"), "work "),
    (re.compile(r"__global "), "cells "),
    (re.compile(r"get_(?:group|local)_id\(\d\)"), "0"),
    (re.compile(r"convert_(\w+?)(?=\()"), r"(\1)"),
)


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator; raises CompileError as every generator."""
    load_function(source)  # refuses what is no function
    options = dict(target.options) | {"schedule": "one-thread"}
    given = replace(target, platform="opencl", options=tuple(sorted(options.items())))
    library = generate_opencl(source, given)
    modules = []
    for module in library.modules:
        text = module.code.decode()
        for pattern, word in _WORDS:
            text = pattern.sub(word, text)
        modules.append(
            replace(module, dialect=LANGUAGE.dialect, code=text.encode(), kind=LANGUAGE.kind)
        )
    return replace(library, target="abacus", modules=tuple(modules))
