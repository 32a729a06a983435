"""RWKV5 and RWKV6, with the names of weights and sizes that published folders have.

Recurrent models (Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic
Recurrence"): each layer keeps the last token's two inputs and a matrix for each head, so a state
does not grow with the text. The classes are tapml's own: a folder's code never runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from tapml.own_operators import register as register_operators

MODEL_TYPES: Final = ("rwkv5", "rwkv6")
# What the outputs of heads are divided by before they are normalised.
_HEAD_DIVISOR: Final = 8
# Ranks of RWKV6's projections of a token, in which decay and mixing depend on it.
_MIX_RANK: Final = 32
_DECAY_RANK: Final = 64


class Rwkv5Config(PretrainedConfig):  # type: ignore[misc]
    """Sizes as in ``config.json``; `num_attention_heads` of some files is no count of heads."""

    model_type = "rwkv5"

    vocab_size: int = 65536
    hidden_size: int = 768
    num_hidden_layers: int = 24
    head_size: int = 64
    context_length: int = 4096
    attention_hidden_size: int | None = None
    intermediate_size: int | None = None
    layer_norm_epsilon: float = 1e-5
    head_size_divisor: int = _HEAD_DIVISOR
    tie_word_embeddings: bool = False
    # Whether each head's matrix begins with trained values (`time_state`), not with zeros.
    initial_state: bool = False

    def __post_init__(self, **others: Any) -> None:
        """Sizes that follow from others, as the published configurations leave them out."""
        self.attention_hidden_size = self.attention_hidden_size or self.hidden_size
        self.intermediate_size = self.intermediate_size or int(self.hidden_size * 3.5) // 32 * 32
        super().__post_init__(**others)


class Rwkv6Config(Rwkv5Config):
    """The same sizes under the model type ``rwkv6``."""

    model_type = "rwkv6"


STARTED: Final = "state.started"
"""Of a model with initial values: 0 before the first run and 1 after it, so that the state begins
as zeros like every other."""


class LayerState(NamedTuple):
    """What a layer keeps: two inputs ``[hidden]``, and ``[heads, head size, head size]``."""

    attention: Tensor
    feed_forward: Tensor
    matrix: Tensor


def state_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all state by name: ``state.<layer>.<part>``, parts as in :class:`LayerState`."""
    heads = config.attention_hidden_size // config.head_size
    shapes = {
        "attention": (config.hidden_size,),
        "feed_forward": (config.hidden_size,),
        "matrix": (heads, config.head_size, config.head_size),
    }
    named = {
        f"state.{layer}.{part}": shapes[part]
        for layer in range(config.num_hidden_layers)
        for part in LayerState._fields
    }
    return named | {STARTED: (1,)} if config.initial_state else named


def _shifted(hidden: Tensor, before: Tensor) -> Tensor:
    """``[tokens, hidden]``: each row the one before it."""
    # A slice of what may be one row would end the export of a dynamic length.
    return torch.cat([before[None], hidden])[:-1]


class _Attention(nn.Module):
    """Time mixing; subclasses say how tokens mix and decay."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.attention_hidden_size
        self.size = config.head_size
        self.heads = inner // config.head_size
        self.time_faaaa = nn.Parameter(torch.zeros(self.heads, self.size))
        if config.initial_state:
            # The value first, as it is trained.
            self.time_state = nn.Parameter(torch.zeros(self.heads, self.size, self.size))
        self.receptance = nn.Linear(hidden, inner, bias=False)
        self.key = nn.Linear(hidden, inner, bias=False)
        self.value = nn.Linear(hidden, inner, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.output = nn.Linear(inner, hidden, bias=False)
        # Dividing by a number first is a larger epsilon.
        epsilon = config.layer_norm_epsilon * config.head_size_divisor**2
        self.ln_x = nn.GroupNorm(self.heads, inner, eps=epsilon)

    def initial(self) -> Tensor:
        """The matrix of each head before the first token, key first."""
        return self.time_state.transpose(1, 2)

    @abstractmethod
    def mixed(self, hidden: Tensor, before: Tensor) -> Mapping[str, Tensor]:
        """Inputs ``[tokens, hidden]`` of receptance, key, value, gate and, if it asks, decay."""

    @abstractmethod
    def recurrence(
        self, tensors: Sequence[Tensor], mixed: Mapping[str, Tensor], matrix: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[tokens, heads, head size]`` and state of receptance, key and value."""

    def forward(
        self, hidden: Tensor, before: Tensor, matrix: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed = self.mixed(hidden, _shifted(hidden, before))
        shape = (-1, self.heads, self.size)
        tensors = [
            getattr(self, name)(mixed[name]).view(shape) for name in ("receptance", "key", "value")
        ]
        outputs, matrix = self.recurrence(tensors, mixed, matrix)
        # Written out: a group norm of rows, which the importer would make one of images.
        width = outputs - outputs.mean(-1, keepdim=True)
        scale = torch.rsqrt(width.square().mean(-1, keepdim=True) + self.ln_x.eps)
        normed = (width * scale).flatten(1) * self.ln_x.weight + self.ln_x.bias
        gate = functional.silu(self.gate(mixed["gate"]))
        return self.output(normed * gate), hidden[-1], matrix


class Rwkv5Attention(_Attention):
    """Mixing weights and decay are parameters."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.time_decay = nn.Parameter(torch.zeros(self.heads, self.size))
        for name in ("receptance", "key", "value", "gate"):
            setattr(self, f"time_mix_{name}", nn.Parameter(torch.zeros(1, 1, config.hidden_size)))

    def mixed(self, hidden: Tensor, before: Tensor) -> Mapping[str, Tensor]:
        """A learned mean of the token and the one before it."""
        made = {}
        for name in ("receptance", "key", "value", "gate"):
            mix = getattr(self, f"time_mix_{name}")[0]
            made[name] = hidden * mix + before * (1 - mix)
        return made

    def recurrence(
        self, tensors: Sequence[Tensor], mixed: Mapping[str, Tensor], matrix: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The decay of each channel is the same for every token."""
        decay = torch.exp(-torch.exp(self.time_decay))
        outputs, after = torch.ops.tapml.wkv5(*tensors, decay, self.time_faaaa, matrix)
        return outputs, after


class Rwkv6Attention(_Attention):
    """Mixing weights and decay depend on the token."""

    time_maa_x: nn.Parameter
    _NAMES = ("decay", "key", "value", "receptance", "gate")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        hidden, inner = config.hidden_size, config.attention_hidden_size
        for letter in "xwkvrg":
            setattr(self, f"time_maa_{letter}", nn.Parameter(torch.zeros(1, 1, hidden)))
        self.time_maa_w1 = nn.Parameter(torch.zeros(hidden, 5 * _MIX_RANK))
        self.time_maa_w2 = nn.Parameter(torch.zeros(5, _MIX_RANK, hidden))
        self.time_decay = nn.Parameter(torch.zeros(1, 1, inner))
        self.time_decay_w1 = nn.Parameter(torch.zeros(hidden, _DECAY_RANK))
        self.time_decay_w2 = nn.Parameter(torch.zeros(_DECAY_RANK, inner))

    def mixed(self, hidden: Tensor, before: Tensor) -> Mapping[str, Tensor]:
        """The weights of that mean come from the token."""
        change = before - hidden
        low = torch.tanh((hidden + change * self.time_maa_x[0]) @ self.time_maa_w1)
        made = {}
        for index, (name, letter) in enumerate(zip(self._NAMES, "wkvrg", strict=True)):
            part = low[:, index * _MIX_RANK : (index + 1) * _MIX_RANK]
            by_token = part @ self.time_maa_w2[index]
            made[name] = hidden + change * (getattr(self, f"time_maa_{letter}")[0] + by_token)
        return made

    def recurrence(
        self, tensors: Sequence[Tensor], mixed: Mapping[str, Tensor], matrix: Tensor
    ) -> tuple[Tensor, Tensor]:
        """So does the decay."""
        low = torch.tanh(mixed["decay"] @ self.time_decay_w1)
        decay = torch.exp(-torch.exp(self.time_decay[0] + low @ self.time_decay_w2))
        decay = decay.view(-1, self.heads, self.size)
        outputs, after = torch.ops.tapml.wkv6(*tensors, decay, self.time_faaaa, matrix)
        return outputs, after


class _FeedForward(nn.Module):
    """Channel mixing."""

    time_mix_key: nn.Parameter
    time_mix_receptance: nn.Parameter
    time_maa_k: nn.Parameter
    time_maa_r: nn.Parameter

    def __init__(self, config: Any, prefix: str) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.to_key, self.to_receptance = f"{prefix}k", f"{prefix}r"
        if prefix == "time_mix_":
            self.to_key, self.to_receptance = "time_mix_key", "time_mix_receptance"
        for name in (self.to_key, self.to_receptance):
            setattr(self, name, nn.Parameter(torch.zeros(1, 1, hidden)))
        self.key = nn.Linear(hidden, inner, bias=False)
        self.receptance = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(inner, hidden, bias=False)

    def forward(self, hidden: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        past = _shifted(hidden, before)
        if self.to_key == "time_mix_key":
            key, receptance = (
                hidden * mix + past * (1 - mix)
                for mix in (self.time_mix_key[0], self.time_mix_receptance[0])
            )
        else:
            key, receptance = (
                hidden + (past - hidden) * mix for mix in (self.time_maa_k[0], self.time_maa_r[0])
            )
        value = self.value(torch.square(torch.relu(self.key(key))))
        return torch.sigmoid(self.receptance(receptance)) * value, hidden[-1]


class _Block(nn.Module):
    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        version5 = config.model_type == "rwkv5"

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

        self.pre_ln = norm() if index == 0 else None
        self.ln1, self.ln2 = norm(), norm()
        self.attention = (Rwkv5Attention if version5 else Rwkv6Attention)(config)
        self.feed_forward = _FeedForward(config, "time_mix_" if version5 else "time_maa_")

    def forward(self, hidden: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        if self.pre_ln is not None:
            hidden = self.pre_ln(hidden)
        mixed, attention, matrix = self.attention(self.ln1(hidden), state.attention, state.matrix)
        hidden = hidden + mixed
        mixed, feed_forward = self.feed_forward(self.ln2(hidden), state.feed_forward)
        return hidden + mixed, LayerState(attention, feed_forward, matrix)


class _Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(
            _Block(config, index) for index in range(config.num_hidden_layers)
        )
        self.ln_out = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)


class RwkvOutput(NamedTuple):
    """Logits ``[1, tokens, vocabulary]``, and the state in the order of :func:`state_shapes`."""

    logits: Tensor
    state: tuple[Tensor, ...]


class Rwkv5ForCausalLM(PreTrainedModel):  # type: ignore[misc]
    """RWKV5 with its head."""

    config_class = Rwkv5Config
    base_model_prefix = "rwkv"

    def __init__(self, config: Any) -> None:
        register_operators()
        super().__init__(config)
        self.rwkv = _Model(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor, state: Sequence[Tensor] | None = None, use_cache: bool = True
    ) -> RwkvOutput:
        """Continue from a state; from the empty one if there is none.

        Parameters
        ----------
        input_ids
            Integers ``[1, tokens]``.
        state
            In the order of :func:`state_shapes`.
        """
        if state is None:
            state = self._initial()
        started = state[-1] if self.config.initial_state else None
        hidden = self.rwkv.embeddings(input_ids[0])
        after: list[Tensor] = []
        for index, block in enumerate(self._blocks()):
            before = LayerState(*state[3 * index : 3 * index + 3])
            if started is not None:
                begun = started[:, None, None] > 0
                matrix = torch.where(begun, before.matrix, block.attention.initial())
                before = before._replace(matrix=matrix)
            hidden, kept = block(hidden, before)
            after += kept
        if started is not None:
            after.append(torch.clamp(started, min=1.0))
        return RwkvOutput(self.head(self.rwkv.ln_out(hidden))[None], tuple(after))

    def _blocks(self) -> list[_Block]:
        return [each for each in self.rwkv.blocks if isinstance(each, _Block)]

    def _initial(self) -> list[Tensor]:
        """The state before the first token, as if a run had been."""
        state = [self.head.weight.new_zeros(each) for each in state_shapes(self.config).values()]
        if self.config.initial_state:
            state[2::3] = [block.attention.initial() for block in self._blocks()]
            state[-1] = torch.ones_like(state[-1])
        return state

    def _init_weights(self, module: nn.Module) -> None:
        """Weights come from a folder."""


class Rwkv6ForCausalLM(Rwkv5ForCausalLM):
    """RWKV6 with its head."""

    config_class = Rwkv6Config


def register() -> None:
    """Make the configurations known to ``transformers`` by their model types."""
    register_operators()
    for model_type, config in zip(MODEL_TYPES, (Rwkv5Config, Rwkv6Config), strict=True):
        AutoConfig.register(model_type, config, exist_ok=True)
