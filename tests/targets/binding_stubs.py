"""What a vendor's binding has, by its own stubs, and whether a stand-in has anything else."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
from collections.abc import Iterable
from typing import Any

import pytest

Stubs = dict[str, dict[str, str]]
"""By class (a module's own functions under its name) and name: the parameters, or ``property``."""


def read_stubs(texts: dict[str, str]) -> Stubs:
    """The classes and functions of stubs, by the name of their module."""
    found: Stubs = {}
    for module, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(module, {})[node.name] = _parameters(node)
            elif isinstance(node, ast.ClassDef):
                members = found.setdefault(node.name, {})
                for each in node.body:
                    if isinstance(each, ast.FunctionDef):
                        members[each.name] = _parameters(each)
                    elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        members[each.target.id] = "property"
                    elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                        members[each.targets[0].id] = "property"
    return found


def installed_stubs(distribution: str, ends: Iterable[str]) -> Stubs:
    """Those of an installed package; skips the test where it is not installed."""
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: its stubs are as recorded")
    wanted = tuple(ends)
    return read_stubs(
        {each.stem: each.read_text("utf-8") for each in files if str(each).endswith(wanted)}
    )


def what_it_adds(stand_in: Any, known: dict[str, str]) -> list[str]:
    """What a class or a module of functions has that the binding has not, or has otherwise."""
    wrong = []
    for name, member in vars(stand_in).items():
        if name.startswith("_"):
            continue
        told = _told(member)
        if known.get(name) != told:
            wrong.append(f"{name}: {told}; the binding has {known.get(name)}")
    return wrong


def _told(member: Any) -> str:
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    if not inspect.isfunction(function):
        return "property"
    text = f"def f{inspect.signature(function)}: ..."
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return _parameters(node)


def _parameters(node: ast.FunctionDef) -> str:
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return "property"
    taken = node.args
    names = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    if taken.vararg:
        names.append(f"*{taken.vararg.arg}")
    elif taken.kwonlyargs:
        names.append("*")
    return ", ".join([*names, *(each.arg for each in taken.kwonlyargs)])
