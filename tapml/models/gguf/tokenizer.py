"""A ``tokenizer.json`` from the tokenizer in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tapml_targets.errors import InputError

_DIGITS: Final = "digits"
_GPT2: Final = ""
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut before merging, by the name in ``tokenizer.ggml.pre``.
_CUTS: Final = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "llama-bpe": _WORDS % "{1,3}",
    "qwen2": _WORDS % "",
}
_NAMED: Final = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token"}
_PLAIN: Final = 1
_CONTROL: Final = 3
_OWN: Final = 4
_SPACE: Final = "\u2581"
_LONGEST_PIECE: Final = 256


def tokenizer_json(fields: Mapping[str, Any]) -> str | None:
    """The tokenizer as the library ``tokenizers`` stores it; None if its kind is not known here.

    Raises
    ------
    InputError
        If its parts do not fit together.
    """
    tokens = fields.get("tokenizer.ggml.tokens")
    if fields.get("tokenizer.ggml.model") == "llama" and tokens:
        return _with_begin(_sentence_pieces(tokens, fields), tokens, fields, default=True)
    merges = fields.get("tokenizer.ggml.merges")
    cut = _CUTS.get(str(fields.get("tokenizer.ggml.pre", "default")))
    if fields.get("tokenizer.ggml.model") != "gpt2" or cut is None or not tokens or not merges:
        return None
    from tokenizers import Tokenizer, decoders, models

    pairs = [str(each).partition(" ") for each in merges]
    if not all(right for _, _, right in pairs):
        raise InputError("the tokenizer of the GGUF file has a merge that is no pair of tokens")
    try:
        model = models.BPE(
            vocab={str(token): index for index, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in pairs],
        )
        tokenizer = Tokenizer(model)
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"the tokenizer of the GGUF file cannot be used: {error}") from error
    tokenizer.pre_tokenizer = _cutting(cut)
    tokenizer.decoder = decoders.ByteLevel()
    _mark_special(tokenizer, tokens, fields)
    return _with_begin(tokenizer, tokens, fields, default=False)


def _sentence_pieces(tokens: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """SentencePiece's kind: of neighbours the pair goes together whose token has the best score."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores: Sequence[float] = fields.get("tokenizer.ggml.scores") or ()
    kinds: Sequence[int] = fields.get("tokenizer.ggml.token_type") or ()
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    if not (len(scores) == len(kinds) == len(tokens)) or not (
        isinstance(unknown, int) and 0 <= unknown < len(tokens)
    ):
        raise InputError(
            f"the tokenizer of the GGUF file has {len(tokens)} tokens, {len(scores)} scores and "
            f"{len(kinds)} types, and {str(unknown)[:20]} for unknown text: these do not fit"
        )
    vocabulary = {str(token): index for index, token in enumerate(tokens)}
    plain = [str(each) for each, kind in zip(tokens, kinds, strict=True) if kind == _PLAIN]
    pieces = set(plain)
    ranked = sorted(plain, key=lambda token: -scores[vocabulary[token]])
    merges = [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(1, min(len(token), _LONGEST_PIECE))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    try:
        model = models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=str(tokens[unknown]),
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"the tokenizer of the GGUF file cannot be used: {error}") from error
    tokenizer = Tokenizer(model)
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    _mark_special(tokenizer, tokens, fields)
    return tokenizer


def _mark_special(tokenizer: Any, tokens: Sequence[Any], fields: Mapping[str, Any]) -> None:
    """Tokens that text is cut at before anything else; those of control are not shown."""
    from tokenizers import AddedToken

    kinds: Sequence[int] = fields.get("tokenizer.ggml.token_type") or ()
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(str(token), special=True, normalized=False)])
        elif kind == _OWN:
            tokenizer.add_tokens([AddedToken(str(token), normalized=False)])


def _with_begin(
    tokenizer: Any, tokens: Sequence[Any], fields: Mapping[str, Any], *, default: bool
) -> str:
    """The tokenizer as JSON, with a begin token before a text if the file says so."""
    from tokenizers import processors

    begin = fields.get("tokenizer.ggml.bos_token_id")
    if fields.get("tokenizer.ggml.add_bos_token", default) and isinstance(begin, int):
        if not 0 <= begin < len(tokens):
            raise InputError(f"the begin token {begin} of the GGUF file is not in its vocabulary")
        text = str(tokens[begin])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", special_tokens=[(text, begin)]
        )
    return str(tokenizer.to_str())


def tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says beside it: the chat template, begin and end tokens."""
    tokens: Sequence[Any] = fields.get("tokenizer.ggml.tokens") or ()
    # The class that takes tokenizer.json as it is.
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for theirs, ours in _NAMED.items():
        token = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            config[ours] = str(tokens[token])
    if isinstance(template := fields.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    return config


def _cutting(cut: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut in (_GPT2, _DIGITS))
    if cut == _GPT2:
        return plain
    if cut == _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated"), plain])
