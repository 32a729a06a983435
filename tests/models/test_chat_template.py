"""A chat template gives the prompt that transformers gives, and cannot do anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tapml.models import chat_template
from tapml.models.chat_template import (
    MAX_TEMPLATE_CHARACTERS,
    ChatRenderer,
    ChatTemplate,
    chat_template_of,
    read_chat_template,
)
from tapml_targets.errors import InputError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Häuser & <b>\n?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": " more "},
]
# Written for these tests after what templates in use do: trimming, loops left early, tags of
# training, tables as JSON, scopes, and a refusal.
TEMPLATES = {
    "marks": (
        "{% for message in messages %}\n{{ bos_token + '[' + message.role + ']' }}\n"
        "{{ message['content'] | trim }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    "namespace": (
        "{%- set found = namespace(system='none', turns=0) -%}\n"
        "{%- for message in messages -%}\n  {%- if message.role == 'system' -%}\n"
        "    {%- set found.system = message.content -%}\n    {%- continue -%}\n  {%- endif -%}\n"
        "  {%- set found.turns = found.turns + 1 -%}\n  {%- if found.turns > 2 -%}\n"
        "    {%- break -%}\n  {%- endif -%}\n{{ loop.index0 }}:{{ message | tojson }}\n"
        "{%- endfor -%}\n{{ found.system }} {{ messages[1:] | tojson(indent=2) }}"
    ),
    "generation": (
        "{% for message in messages %}\n    {% if message.role == 'assistant' %}\n"
        "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\n"
        "    {% else %}\n{{ message.content }}\n    {% endif %}\n{% endfor %}"
    ),
    "undefined": "{% if tools is defined %}tools{% endif %}{{ missing }}{{ messages | length }}",
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of transformers, whose templates are given to it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={"<s>": 0, "</s>": 1}, merges=[]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_the_one_of_transformers(name: str, oracle: Any) -> None:
    expected = oracle.apply_chat_template(
        TALK, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(TALK) == expected


@pytest.fixture(scope="module")
def render() -> Iterator[Any]:
    """Renders any template, in one pool."""
    with ChatRenderer(ChatTemplate("", {})) as renderer:

        def through(template: str, messages: Any = None) -> str:
            renderer._chat = ChatTemplate(template, {})
            return renderer.render(messages or TALK[1:2])

        yield through


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only users\nhere') }}", "template says: only users$"),
        ("{% if messages %}", "template says: unexpected 'end of template'|Unexpected end"),
        ("{{ messages[0].content + 3 }}", "failed on this conversation: can only concatenate"),
        ("{{ ''.__class__.__mro__ }}", "attribute '__class__' of 'str' object is unsafe"),
        ("{{ raise_exception.__globals__.x }}", "is unsafe"),
        ("{{ messages.append(1) }}", "is not safely callable|is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader for this environment"),
        ("{{ 'a' * 10 ** 11 }}", "took too much memory"),
        (
            "{% for i in range(99) %}{{ messages[0].content * 99999 }}{% endfor %}",
            "wrote more than 16777216 characters",
        ),
    ],
)
def test_what_a_template_may_not_do_is_said(template: str, said: str, render: Any) -> None:
    with pytest.raises(InputError, match=said):
        render(template)
    # The next one is rendered as if nothing had been.
    assert render("{{ messages[0].role }}") == "user"


def test_a_template_without_end_is_ended(render: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.5)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with (
        ChatRenderer(ChatTemplate(endless, {})) as renderer,
        pytest.raises(InputError, match=r"did not finish within 0\.5 s"),
    ):
        renderer.render(TALK)


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}] * 1025])
def test_a_conversation_has_messages_and_not_too_many(messages: Any) -> None:
    with pytest.raises(InputError, match="1 to 1024 messages"):
        ChatTemplate("", {}).render(messages)


def test_without_jinja_it_is_refused_by_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"needs the `jinja2` library.*tapml\[chat\]"):
        ChatTemplate("", {}).render(TALK)


def test_it_is_read_from_a_models_folder_as_transformers_writes_it(
    tmp_path: Path, oracle: Any
) -> None:
    assert read_chat_template(tmp_path) is None
    config = {"chat_template": "one", "bos_token": {"content": "<s>", "lstrip": False}, "x": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_chat_template(tmp_path) == ChatTemplate("one", {"bos_token": "<s>"})
    (tmp_path / "chat_template.jinja").write_text("of a file of its own")
    found = read_chat_template(tmp_path)
    assert found == ChatTemplate("of a file of its own", {"bos_token": "<s>"})
    assert chat_template_of(found.to_bytes(), None, "") == found
    oracle.chat_template = TEMPLATES["marks"]
    oracle.save_pretrained(tmp_path / "saved")
    assert read_chat_template(tmp_path / "saved") == ChatTemplate(TEMPLATES["marks"], TOKENS)


def test_of_several_templates_the_default_is_taken() -> None:
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    found = chat_template_of(json.dumps({"chat_template": named}).encode(), None, "")
    assert found == ChatTemplate("b", {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is damaged"),
        (b"[1]", "is damaged"),
        (b'{"chat_template": 7}', "expected a text"),
        (json.dumps({"chat_template": "a" * (MAX_TEMPLATE_CHARACTERS + 1)}).encode(), "at most"),
    ],
)
def test_a_template_that_is_none_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        chat_template_of(content, None, "here")
