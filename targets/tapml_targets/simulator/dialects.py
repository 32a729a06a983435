"""What the simulator knows of each language: its header, its entries, its shared memory.

The text is changed only where the processor's compiler needs it, and no line moves: a message about
line 7 is about line 7 of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tapml_targets.errors import CompileError
from tapml_targets.platforms import language_of_dialect


@dataclass(frozen=True)
class Dialect:
    """A kernel language on the simulator.

    Attributes
    ----------
    header
        The file in ``native/`` that gives the language's names.
    prepared
        The text with shared memory as the processor's compiler takes it.
    entry
        C++ that calls a kernel of a text, by name: the text and the kernel's symbol.
    options
        Build options that its header knows: each defines ``TAPML_`` and its name. Others of the
        language have no effect.
    packed
        Whether a kernel gets its numbers as one structure behind its buffers.
    """

    header: str
    prepared: Callable[[str], str]
    entry: Callable[[str, str], str]
    options: frozenset[str] = frozenset()
    packed: bool = False


def dialect_named(name: str) -> Dialect:
    """The language of a module's dialect, or the one that a platform's language is executed as.

    Raises
    ------
    CompileError
        If the simulator does not run it.
    """
    found = DIALECTS.get(name)
    if found is None and (language := language_of_dialect(name)) is not None:
        found = DIALECTS.get(language.executed_as)
    if found is None:
        raise CompileError(
            f"the simulator runs {', '.join(sorted(DIALECTS))}, not {name!r}: compile the kernels "
            "for one of these, or name one in `executed_as` of the platform's language"
        )
    return found


_EXPORTED: Final = 'extern "C" __attribute__((visibility("default")))'
_ALIGN: Final = r"(?:alignas\s*\([^()]*\)|__align__\s*\([^()]*\))\s*"
_DYNAMIC: Final = re.compile(
    rf"\bextern\s+__shared__\s+(?P<align>{_ALIGN})?(?P<type>[\w:]+(?:\s+\w+)??)\s+"
    rf"(?P<name>\w+)\s*\[\s*\]"
)
_SHARED: Final = re.compile(rf"\b__shared__\s+(?P<align>{_ALIGN})?")
_THREADGROUP: Final = re.compile(
    r"(?P<before>(?:^|[;{}])\s*)threadgroup\s+(?=(?:alignas\s*\([^()]*\)\s*)?"
    r"[\w:]+(?:\s*<[^<>;]*>)?\s+\w+\s*(?:\[[^\[\];]*\]\s*)*;)",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _cuda_prepared(text: str) -> str:
    text = _DYNAMIC.sub(
        r"\g<type>* const \g<name> = reinterpret_cast<\g<type>*>(tapml_dynamic_shared)", text
    )
    return _SHARED.sub(lambda found: f"{found['align'] or ''}TAPML_SHARED ", text)


def _metal_prepared(text: str) -> str:
    return _THREADGROUP.sub(r"\g<before>TAPML_SHARED ", text)


def _cuda_entry(text: str, symbol: str) -> str:
    if not re.search(rf"\b__global__\b[^;{{}}]*?\b{symbol}\s*\(", _without_comments(text)):
        raise _no_kernel(symbol)
    return _entry(symbol, f"tapml::signature<decltype({symbol})>::call(&{symbol}, arguments);")


def _metal_entry(text: str, symbol: str) -> str:
    found = re.search(rf"\bkernel\s+void\s+{symbol}\s*\(", _without_comments(text))
    if found is None:
        raise _no_kernel(symbol)
    given = []
    places = []
    parameters = _parameters(_without_comments(text)[found.end() :])
    for index, parameter in enumerate(parameters):
        attribute = re.search(r"\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]\s*$", parameter)
        if attribute is None:
            raise CompileError(
                f"kernel {symbol!r}: parameter {index} has no attribute such as [[buffer(0)]]: "
                f"{parameter.strip()[:80]!r}"
            )
        of_type = f"typename tapml::parameter_type<{index}, decltype({symbol})>::type"
        if attribute[1] == "buffer":
            places.append((int(attribute[2] or 0), index))
            given.append(f"tapml::argument_of<{of_type}>::get(arguments[{int(attribute[2] or 0)}])")
        elif attribute[1] in _BUILT_IN:
            given.append(f"tapml::built_in<{of_type}>(TAPML_{attribute[1]})")
        else:
            raise CompileError(
                f"kernel {symbol!r}: the simulator does not know [[{attribute[1]}]]; it knows "
                f"buffer, {', '.join(sorted(_BUILT_IN))}"
            )
    if [place for place, _ in sorted(places)] != list(range(len(places))):
        raise CompileError(f"kernel {symbol!r}: its buffers are not numbered 0, 1, 2 ...")
    sizes = "".join(
        f", tapml::value_bytes<typename tapml::parameter_type<{index}, decltype({symbol})>::type>"
        for _, index in sorted(places)
    )
    return _entry(symbol, f"{symbol}({', '.join(given)});", f"{len(places)}{sizes}")


_BUILT_IN: Final = frozenset(
    {
        "thread_position_in_threadgroup", "threadgroup_position_in_grid",
        "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "threadgroups_per_grid",
        "thread_position_in_grid", "threads_per_grid", "thread_index_in_threadgroup",
        "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup", "threads_per_simdgroup",
        "thread_execution_width", "simdgroups_per_threadgroup",
    }
)  # fmt: skip


def _entry(symbol: str, call: str, sizes: str = "") -> str:
    if sizes:
        table = f"static const uint32_t sizes[] = {{{sizes}, 0}}; return sizes;"
    else:
        table = f"return tapml::signature<decltype({symbol})>::bytes;"
    return (
        f"{_EXPORTED} void tapml_entry_{symbol}(void** arguments) {{ {call} }} "
        f"{_EXPORTED} const uint32_t* tapml_sizes_{symbol}() {{ {table} }}"
    )


def _no_kernel(symbol: str) -> CompileError:
    return CompileError(f"the module has no kernel {symbol!r}")


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _parameters(text: str) -> Sequence[str]:
    """The parameters of a function whose list begins at the start of `text`."""
    depth, begin = 0, 0
    found = []
    for place, character in enumerate(text):
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            if character == ")" and depth == 0:
                found.append(text[begin:place])
                return [each for each in found if each.strip()]
            depth -= 1
        elif character == "," and depth == 0:
            found.append(text[begin:place])
            begin = place + 1
    return found


_CUDA: Final = Dialect("cuda.h", _cuda_prepared, _cuda_entry)
_HIP: Final = Dialect("hip.h", _cuda_prepared, _cuda_entry)
_METAL: Final = Dialect(
    "metal.h", _metal_prepared, _metal_entry, frozenset({"fast-math"}), packed=True
)
DIALECTS: Final = MappingProxyType(
    {"cuda-c": _CUDA, "hip": _HIP, "hip-c": _HIP, "metal": _METAL, "msl": _METAL}
)
"""The languages by the dialect of a module."""
