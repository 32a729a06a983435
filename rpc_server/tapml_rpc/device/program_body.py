"""A program: commands that are sent once, and the integers that each run brings.

In place of an integer of a command, a program may have ``{"argument": i}``. The two fields that are
themselves maps (symbols, options) are never an argument; the values in them may be one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tapml_rpc import wire
from tapml_targets.errors import InputError, ProtocolError

MAX_ARGUMENTS: Final = 64
MAX_NAME_CHARACTERS: Final = 256
# What a program may do, and how many fields each has: nothing that makes a handle or ends one.
_FIELDS: Final = {"call": 5, "copy": 5, "fence": 0, "fill": 4, "paste": 5, "read": 3, "write": 4}
_MAPS: Final = {"call": (4, 5)}
# Tensors, a tensor, its shape.
_MAX_DEPTH: Final = 4


@dataclass(frozen=True)
class ProgramBody:
    """A program that has been checked.

    `commands` are in batch form; `varying` says for each whether it has arguments, `bindable`
    whether it is a call that is the same in every run. A run brings `arguments` integers. The
    program has `nbytes` bytes on the wire.
    """

    name: str
    commands: tuple[list[Any], ...]
    varying: tuple[bool, ...]
    bindable: tuple[bool, ...]
    arguments: int
    nbytes: int

    def take(self, arguments: object) -> list[int]:
        """The checked integers of a run; raises InputError for more or fewer of them."""
        given = wire.array(arguments, "arguments", MAX_ARGUMENTS)
        if len(given) != self.arguments:
            raise InputError(
                f"program {self.name!r} has {self.arguments} arguments, {len(given)} came"
            )
        for value in given:
            wire.integer(value, "argument")
        return given

    def command(self, place: int, arguments: list[int]) -> list[Any]:
        """A command of a run."""
        command = self.commands[place]
        return _filled(command, arguments.__getitem__) if self.varying[place] else command


def check_program(name: object, commands: object, most: int) -> ProgramBody:
    """Check a program of at most `most` commands; raises ProtocolError or InputError."""
    called = wire.text(name, "program name", MAX_NAME_CHARACTERS)
    if not called:
        raise ProtocolError("a program has a name")
    given = wire.array(commands, "commands of a program")
    if len(given) > most:
        raise InputError(f"program {called!r} of {len(given)} commands; at most {most} are taken")
    used: set[int] = set()
    varying = []
    for place, command in enumerate(given):
        found: set[int] = set()
        try:
            _filled(_checked(command), found.add)
        except (ProtocolError, InputError) as error:
            raise type(error)(f"command {place} of program {called!r}: {error}") from None
        varying.append(bool(found))
        used |= found
    if used and max(used) != len(used) - 1:
        raise ProtocolError(f"program {called!r} has arguments {sorted(used)}: they count from 0")
    nbytes = len(wire.pack({"commands": given}))
    bindable = tuple(
        command[0] == "call" and command[5] == {} and not varies
        for command, varies in zip(given, varying, strict=True)
    )
    return ProgramBody(called, tuple(given), tuple(varying), bindable, len(used), nbytes)


def _checked(command: object) -> list[Any]:
    fields = wire.array(command, "command")
    name = wire.text(fields[0], "command", 40) if fields else ""
    if name not in _FIELDS:
        raise InputError(f"{name!r} is not allowed in a program; allowed are {', '.join(_FIELDS)}")
    if len(fields) - 1 != _FIELDS[name]:
        raise ProtocolError(f"wrong number of fields in {name!r}")
    return fields


def _filled(command: list[Any], value_of: Callable[[int], Any]) -> list[Any]:
    """A command with every argument replaced by `value_of` of its number."""
    maps = _MAPS.get(command[0], ())
    return [
        {key: _replaced(each, value_of) for key, each in field.items()}
        if position in maps and type(field) is dict
        else _replaced(field, value_of)
        for position, field in enumerate(command)
    ]


def _replaced(value: Any, value_of: Callable[[int], Any], depth: int = 0) -> Any:
    if type(value) is list:
        if depth == _MAX_DEPTH:
            raise ProtocolError("its fields are nested too deep")
        return [_replaced(each, value_of, depth + 1) for each in value]
    if type(value) is dict:
        if set(value) != {"argument"}:
            raise ProtocolError('an argument is {"argument": its number} and nothing else')
        return value_of(wire.integer(value["argument"], "argument", MAX_ARGUMENTS - 1))
    return value
