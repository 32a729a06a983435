"""No generic code asks for a platform or a kernel language by its name.

What a platform is lies in its folder, so that one more is one more folder, of tapml or of another
distribution. The places below may name one, each for its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tapml_targets.platforms import kernel_languages, own_platforms, platform_folder

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("tapml", "rpc_server/tapml_rpc", "targets/tapml_targets")
# Platforms to come, and names of languages that are no dialects of a Library yet.
COMING: Final = frozenset({"hip"})
# The processor is a platform, and also a kind of device and of function: `cpu` alone says nothing.
AMBIGUOUS: Final = frozenset({"cpu"})

TYPED: Final = "type checkers know no entry points: each platform of tapml has its typed name"
REFERENCE: Final = "the reference is this machine's processor, built and loaded as that platform's"
ALLOWED: Final = {
    "tapml/__init__.py": TYPED,
    "tapml/compiler/reference_module.py": REFERENCE,
    "tapml/importing/scans.py": "TVM's target kind, whose sorts and scans are the form for GPUs",
    "tapml/invariants/context.py": "PyTorch's name of a kind of device",
    "targets/tapml_targets/platforms.py": "the default platform",
}
# Help texts and messages of the command line show examples, which are more than a name.
EXAMPLES: Final = "tapml/cli"
# Shared by platforms whose drivers the Vulkan loader finds, and by browsers.
LOADER: Final = "targets/tapml_targets/vulkan_loader"
# Executes the languages of the platforms whose hardware is rarely there.
SIMULATOR: Final = "targets/tapml_targets/simulator"


def generic_modules() -> Iterator[Path]:
    """Every module but those in the folder of a platform."""
    folders = [platform_folder(name) for name in own_platforms()]
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            mine = any(path.is_relative_to(folder) for folder in folders)
            shared = any(path.is_relative_to(ROOT / each) for each in (LOADER, SIMULATOR))
            if not mine and not shared:
                yield path


def names() -> frozenset[str]:
    """Names of platforms and kernel languages."""
    languages = frozenset(each.dialect for each in kernel_languages().values())
    return (frozenset(own_platforms()) | languages | COMING) - AMBIGUOUS


def named(text: str, *, examples: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for every use of a name in a module: strings and imports.

    `examples` lets sentences name one: what is compared or looked up is the name alone.
    """
    word = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(names())))})(?![\w-])", re.I)
    imported = re.compile(rf"tapml_targets\.({'|'.join(own_platforms())})\b")
    if not (word.search(text) or imported.search(text) or "from tapml_targets import" in text):
        return
    tree = ast.parse(text)
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        # Docstrings of modules, classes, functions, and of values.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said = id(node) in documentation or (examples and len(node.value.split()) > 1)
            if not said and (found := word.search(node.value)):
                yield node.lineno, found[0]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            paths = [f"{base}{each.name}" for each in node.names]
            yield from ((node.lineno, each) for each in paths if imported.match(each))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if target.platform == "webgpu": ...', "webgpu"),
        ('x = f"kernels in {name}.cl for OpenCL"', "OpenCL"),
        ("from tapml_targets.vulkan import glslang", "tapml_targets.vulkan.glslang"),
        ("import tapml_targets.cpu.driver", "tapml_targets.cpu.driver"),
        ("from tapml_targets import cpu", "tapml_targets.cpu"),
        ('DIALECTS = {"opencl-c": 1}', "opencl-c"),
        ('"""A device such as opencl:1."""', None),
        ('MODES = ("serial", "cpu")', None),
        ("from tapml_targets.vulkan_loader.drivers import browser_environment", None),
    ],
)
def test_a_name_in_code_is_found(text: str, found: str | None) -> None:
    assert [what for _, what in named(text)] == ([found] if found else [])


def test_among_examples_a_name_alone_is_found() -> None:
    text = 'help = f"a device: opencl:1 or {address}"\nif target == "opencl": ...\n'
    assert list(named(text, examples=True)) == [(2, "opencl")]


def test_no_generic_module_names_a_platform_or_a_language() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(
            named(path.read_text("utf-8"), examples=path.is_relative_to(ROOT / EXAMPLES))
        )
        for path in generic_modules()
    }
    assert len(found) > 300
    wrong = [
        f"{path}:{line} names {what}: ask tapml_targets.platforms for it, or write the reason here"
        for path, uses in found.items()
        if path not in ALLOWED
        for line, what in uses
    ]
    assert wrong == []
    unused = [path for path in ALLOWED if not found.get(path)]
    assert unused == [], "these name no platform any more: take them off the list"
