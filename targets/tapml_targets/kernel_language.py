"""A kernel language as data: what readers and writers of kernels' sources need to know of one.

A platform's ``language.py`` holds its :class:`KernelLanguage` as ``LANGUAGE``. One tokenizer, one
reader of signatures and one writer of skeletons (:mod:`tapml.kernels`) work on all of them.

Patterns are regular expressions over a *plain text* of a source: its tokens, without comments,
strings and lines of a preprocessor, with one blank between two tokens: ``a [ i ] = 2.0f ;``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tapml_targets.library import ModuleKind

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
# "1:3:5: error: text" and "my file.cl:3: error: text", as clang and those who follow it write.
CLANG_MESSAGE: Final = (
    r"[ \t]*(?:\S.*?:)??(?P<line>\d+):(?:(?P<column>\d+):)? "
    r"(?P<kind>(?:fatal )?error|warning|note): (?P<text>.*)"
)
"""Form of a message in a build log."""


@dataclass(frozen=True, kw_only=True)
class ParameterSyntax:
    """A language whose kernels take their arguments as parameters, as C's functions do.

    Attributes
    ----------
    qualifiers
        Words that are no part of a parameter's type.
    constant, shared, other
        Patterns found in a parameter that is constant, points to memory shared by the threads of a
        block, or is neither a number nor memory, such as an image.
    built_in
        Pattern found in a parameter that is no argument, such as the index of a thread.
    vector
        Pattern of a vector's type, with the group ``element``; memory of vectors is memory of
        elements.
    """

    qualifiers: frozenset[str] = frozenset()
    constant: str = r"^[^*]*\bconst\b"
    shared: str = r"(?!)"
    other: str = r"(?!)"
    built_in: str = r"(?!)"
    vector: str = r"(?!)"


@dataclass(frozen=True, kw_only=True)
class BindingSyntax:
    """A language whose kernels take memory as numbered declarations, and numbers as a structure.

    Attributes
    ----------
    memory
        Pattern of a declaration, with the groups ``place`` (its number), ``text``, ``name``, and
        ``type``, that of an element.
    constant
        Pattern found in the ``text`` of memory that is only read.
    numbers
        Pattern of what declares the numbers, with a group ``members``, or ``struct``: the name of
        the structure with them.
    member
        Pattern of one of them, with the groups ``type`` and ``name``.
    filled
        Names of members that are no arguments: the driver fills them.
    mark
        Pattern found once in each of these declarations. If there are more, some are in a form
        that is not known here, and the signature is left to the compiler.
    """

    memory: str
    constant: str
    numbers: str
    member: str
    mark: str
    filled: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """How an empty kernel is written.

    Attributes
    ----------
    text
        The source, as a :class:`string.Template` of ``$needs``, ``$buffers``, ``$numbers``,
        ``$places`` (comments: an element's indices), ``$entry``, ``$output`` (the first tensor it
        writes), ``$count`` (of its tensors) and ``$threads`` (of a block).
    read, written
        Templates of one tensor, of ``$name``, ``$place``, ``$element`` and ``$note`` (a comment
        with its dtype where no element has it).
    number
        Template of one number, of ``$name``.
    between_buffers, between_numbers
        Text between two of each.
    elements
        Spelling of an element by dtype.
    other
        Spelling of elements of any other dtype, read and written.
    needs
        Lines of the source that a dtype needs.
    integer
        The dtype of the numbers.
    """

    text: str
    read: str
    written: str
    number: str
    elements: Mapping[str, str]
    other: tuple[str, str]
    integer: str
    between_buffers: str = ",\n    "
    between_numbers: str = ",\n    "
    needs: Mapping[str, str] = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, kw_only=True)
class KernelLanguage:
    """The language of a platform's kernels.

    Attributes
    ----------
    dialect
        As a Library's modules name it.
    extension
        Of source files, without the dot.
    types
        The dtype of an element or number by its spelling.
    entry
        Pattern of a kernel's head up to the parenthesis behind its name, the group ``name``; in a
        language with bindings, of what marks a function as the kernel.
    arguments
        How it takes arguments.
    skeleton
        How an empty kernel is written.
    options
        Build options and their purpose, by name.
    kind
        What kind of code a module of it is. Text whose kernels may do whatever the process may that
        loads them, such as C, is ``machine``: a server takes none unless its owner allows it.
    line_comment, block_comment, nested_comments
        Marks of comments; whether block comments contain block comments.
    directive
        What a line of a preprocessor begins with; empty if there is none.
    dropped
        Words that, with the parentheses behind them, say nothing of arguments.
    noise
        Pattern of what a code generator writes that is of no use to who edits the source.
    messages
        Forms of messages in build logs, with the groups ``line``, ``kind``, ``text`` and, where
        they say it, ``column``.
    barrier
        Pattern of the name of what the threads of a block wait at for each other.
    exchange
        Pattern of a name by which the threads of a wave pass values on without shared memory.
    executed_as
        The dialect of the simulator that executes its text; empty for its own.
    """

    dialect: str
    extension: str
    types: Mapping[str, str]
    entry: str
    arguments: ParameterSyntax | BindingSyntax
    skeleton: Skeleton
    options: Mapping[str, str] = field(default_factory=lambda: _NONE)
    kind: ModuleKind = "source"
    line_comment: str = "//"
    block_comment: tuple[str, str] = ("/*", "*/")
    nested_comments: bool = False
    directive: str = "#"
    dropped: frozenset[str] = frozenset()
    noise: str = r"(?!)"
    messages: tuple[str, ...] = (CLANG_MESSAGE,)
    barrier: str = r"(?!)"
    exchange: str = r"(?!)"
    executed_as: str = ""
