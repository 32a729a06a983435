"""A model's chat template: how a conversation becomes the text of a prompt.

A template is a program of its own (Jinja), and it comes with the model, so it is not trusted: it
runs in Jinja's sandbox, in a process of its own with a deadline and a bound on its memory, because
a sandbox bounds neither (:mod:`tapml.models.chat_rendering`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tapml.isolate.death import ChildDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml.models.chat_rendering import RENDER, RENDERING_MODULES
from tapml_targets.errors import InputError
from tapml_targets.installed import install_hint

CONFIG: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
MAX_CONFIG_BYTES: Final = 16 << 20
MAX_TEMPLATE_CHARACTERS: Final = 256 << 10
MAX_MESSAGES: Final = 1024
RENDER_SECONDS: Final = 10.0
_MAX_TOKEN_CHARACTERS: Final = 256
_MAX_TOKENS: Final = 64
_NEEDS: Final = "jinja2"

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens that it may write, by their names (``bos_token``)."""

    template: str = field(repr=False)
    tokens: Mapping[str, str]

    def render(self, messages: Messages) -> str:
        """The prompt of a conversation, up to where the answer begins.

        Parameters
        ----------
        messages
            Each with a ``role`` (``system``, ``user``, ``assistant``) and a ``content``.

        Raises
        ------
        InputError
            If jinja2 is not installed, or the template refuses the conversation or is malformed,
            takes too long or too much memory.
        """
        with ChatRenderer(self) as renderer:
            return renderer.render(messages)

    def to_bytes(self) -> bytes:
        """A ``tokenizer_config.json`` that holds it and nothing else."""
        content = {"chat_template": self.template, **self.tokens}
        return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True).encode()


class ChatRenderer:
    """Renders a template again and again, with one warm process; a context manager.

    Raises
    ------
    InputError
        If jinja2 is not installed.
    """

    def __init__(self, chat: ChatTemplate) -> None:
        if find_spec(_NEEDS) is None:
            raise InputError(
                "a chat template needs the `jinja2` library, which is not installed: install "
                f"tapml[chat] ({install_hint('chat')}), or give the prompt as it is"
            )
        self._chat = chat
        self._pool = Pool(
            [RENDER],
            workers=1,
            deadline_seconds=RENDER_SECONDS,
            environment=Environment(preload=RENDERING_MODULES),
        )
        self._pool.start()

    def __enter__(self) -> ChatRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its process."""
        self._pool.close()

    def render(self, messages: Messages) -> str:
        """See :meth:`ChatTemplate.render`."""
        if not 0 < len(messages) <= MAX_MESSAGES:
            raise InputError(
                f"a conversation has 1 to {MAX_MESSAGES} messages, this one has {len(messages)}"
            )
        payload = {
            "template": self._chat.template,
            "tokens": dict(self._chat.tokens),
            "messages": [dict(each) for each in messages],
        }
        try:
            text = self._pool.submit(RENDER, payload).result()
        except ChildDiedError as error:
            raise InputError(
                f"the model's chat template {error.report.reason}: give the prompt as it is, or "
                "mend the template"
            ) from error
        return str(text)


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a model's folder; None if it has none.

    Raises
    ------
    InputError
        If a file that holds it is damaged or too large.
    """
    config = _read(folder / CONFIG, MAX_CONFIG_BYTES)
    template = _read(folder / TEMPLATE_FILE, 4 * MAX_TEMPLATE_CHARACTERS)
    return chat_template_of(config, template, str(folder))


def chat_template_of(
    config: bytes | None, template: bytes | None, where: str
) -> ChatTemplate | None:
    """A template from the content of ``tokenizer_config.json``, or of a file of its own.

    Raises
    ------
    InputError
        If it is damaged or too large; the message says where.
    """
    found: Any = {}
    try:
        if config is not None:
            found = json.loads(config)
        if not isinstance(found, dict):
            raise ValueError("expected a table")
        text = found.get("chat_template") if template is None else template.decode()
    except (ValueError, RecursionError, AttributeError) as error:
        raise InputError(f"the chat template in {where} is damaged: {error}") from error
    if isinstance(text, list):
        # Several by name; the others are for tools and retrieval.
        named = [each for each in text if isinstance(each, dict)]
        text = next((each.get("template") for each in named if each.get("name") == "default"), None)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_TEMPLATE_CHARACTERS:
        raise InputError(
            f"the chat template in {where} cannot be used: expected a text of at most "
            f"{MAX_TEMPLATE_CHARACTERS} characters"
        )
    return ChatTemplate(text, _tokens(found))


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens: a text, or a table with one."""
    found: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content[:_MAX_TOKEN_CHARACTERS]
    return dict(list(found.items())[:_MAX_TOKENS])


def _read(path: Path, most: int) -> bytes | None:
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > most:
        raise InputError(f"{path} has more than {most} bytes: expected a smaller file")
    return content
