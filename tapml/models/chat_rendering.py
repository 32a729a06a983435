"""Rendering a chat template: the part that runs in a process of its own.

The environment is the one that the templates of transformers' models are written for: trimmed
blocks, loop controls, ``tojson`` that escapes nothing, ``raise_exception``, ``strftime_now`` and
the tag ``generation``. Jinja's immutable sandbox keeps a template from Python's internals; the
limits of the process keep it from taking all memory.
"""

from __future__ import annotations

import json
import resource
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

RENDER: Final = "tapml.models.chat_rendering:render"
RENDERING_MODULES: Final = (
    "jinja2", "jinja2.ext", "jinja2.sandbox", "tapml.models.chat_rendering"
)  # fmt: skip
MAX_PROMPT_CHARACTERS: Final = 16 << 20
_MEMORY_BYTES: Final = 512 << 20
_REASON_CHARACTERS: Final = 300


def render(payload: Mapping[str, Any]) -> str:
    """The text of a conversation; the job of a child process.

    Parameters
    ----------
    payload
        ``template``, ``tokens`` by name, ``messages``.

    Raises
    ------
    InputError
        If the template is malformed, refuses the conversation, or writes too much.
    """
    _bound_memory()
    from jinja2 import TemplateError

    pieces: list[str] = []
    count = 0
    try:
        template = _environment().from_string(payload["template"])
        stream = template.generate(
            messages=payload["messages"],
            add_generation_prompt=True,
            # There, and nothing, as templates that look for them expect.
            tools=None,
            documents=None,
            **payload["tokens"],
        )
        for piece in stream:
            pieces.append(piece)
            count += len(piece)
            if count > MAX_PROMPT_CHARACTERS:
                raise InputError(
                    f"the model's chat template wrote more than {MAX_PROMPT_CHARACTERS} characters"
                )
    except TemplateError as error:
        raise InputError(f"the model's chat template says: {_one_line(error)}") from error
    except InputError:
        raise
    except MemoryError as error:
        raise InputError("the model's chat template took too much memory") from error
    except Exception as error:  # what a template does with values of other types than it expects
        raise InputError(
            f"the model's chat template failed on this conversation: {_one_line(error)}"
        ) from error
    return "".join(pieces)


def _environment() -> Any:
    from jinja2 import TemplateRuntimeError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around what the model wrote, which training counts; here it is its content."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    def refuse(message: object) -> None:
        raise TemplateRuntimeError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _now
    environment.globals["dict"] = lambda **values: dict(values)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    # Local time, as the templates' own library gives it.
    return datetime.now().astimezone().strftime(form)


def _bound_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped_bytes() + _MEMORY_BYTES
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _mapped_bytes() -> int:
    """Address space taken already, which is more than memory; 0 where nothing tells."""
    try:
        with open("/proc/self/statm", "rb") as stream:  # noqa: PTH123 - no object for one number
            pages = int(stream.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [type(error).__name__]
    return text[0][:_REASON_CHARACTERS]
