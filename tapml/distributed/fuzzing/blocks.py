"""Blocks of today's models as layers of generated networks: larger parts than single layers.

Transformers' encoders, causal and linear attention, experts, graphs, state spaces, vision and
recommender blocks; with tied weights, buffers, parametrized weights and recomputed activations.
"""

from __future__ import annotations

from typing import Final

from tapml.distributed.fuzzing.layers import (
    IMAGE,
    LAYERS,
    SEQUENCE,
    VECTOR,
    Layer,
    Made,
    Shape,
)


def _block(call: str, rank: int, *, even: bool = False) -> Layer:
    """A block that keeps the shapes of a rank; WIDTH, FIRST and SIZE stand for numbers."""

    def make(shape: Shape, size: int) -> Made:
        if len(shape) != rank or (even and shape[-1] % 2):
            return None
        text = call.replace("WIDTH", str(shape[-1])).replace("FIRST", str(shape[0]))
        return text.replace("SIZE", str(size)), shape

    return Layer(make)


def _patches(shape: Shape, size: int) -> Made:
    if len(shape) != IMAGE or shape[1] % 2 or shape[2] % 2:
        return None
    return f"Patches({shape[0]}, {2 * size})", (shape[1] * shape[2] // 4, 2 * size)


def _mean(shape: Shape, size: int) -> Made:
    del size
    return ("MeanOfSteps()", shape[-1:]) if len(shape) == SEQUENCE else None


def _wide(shape: Shape, size: int) -> Made:
    fits = len(shape) in (VECTOR, SEQUENCE)
    return (f"nn.Linear({shape[-1]}, {4 * size})", (*shape[:-1], 4 * size)) if fits else None


BLOCKS: Final[dict[str, Layer]] = {
    "Wide": Layer(_wide),
    "Patches": Layer(_patches),
    "MeanOfSteps": Layer(_mean),
    "Encoder": _block(
        "nn.TransformerEncoderLayer(WIDTH, 2, 8 * SIZE, 0.0, batch_first=True)",
        SEQUENCE,
        even=True,
    ),
    "EncoderNormFirst": _block(
        "nn.TransformerEncoderLayer(WIDTH, 1, 4 * SIZE, 0.0, 'gelu', batch_first=True, "
        "norm_first=True)",
        SEQUENCE,
    ),
    "CausalAttention": _block("CausalAttention(FIRST, WIDTH)", SEQUENCE, even=True),
    "LinearAttention": _block("LinearAttention(WIDTH)", SEQUENCE),
    "Positions": _block("Positions(FIRST, WIDTH)", SEQUENCE),
    "StateSpace": _block("StateSpace(WIDTH, SIZE)", SEQUENCE),
    "BothDirections": _block("BothDirections(WIDTH, SIZE)", SEQUENCE),
    "GraphConvolution": _block("GraphConvolution(FIRST, WIDTH)", SEQUENCE),
    "MessagePassing": _block("MessagePassing(FIRST, WIDTH)", SEQUENCE),
    "ExpertsOfSteps": _block("Experts(WIDTH, 2 + SIZE // 2)", SEQUENCE),
    "GatedOfSteps": _block("Gated(WIDTH, 2 * SIZE)", SEQUENCE),
    "TiedOfSteps": _block("Tied(WIDTH, SIZE)", SEQUENCE),
    "Experts": _block("Experts(WIDTH, 2 + SIZE // 2)", VECTOR),
    "Gated": _block("Gated(WIDTH, 2 * SIZE)", VECTOR),
    "Tied": _block("Tied(WIDTH, SIZE)", VECTOR),
    "Crossed": _block("Crossed(WIDTH)", VECTOR),
    "RadialBasis": _block("RadialBasis(WIDTH, SIZE)", VECTOR),
    "Counting": _block("Counting(WIDTH)", VECTOR),
    "WeightNorm": _block("nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))", VECTOR),
    "LowRank": _block("LowRank(WIDTH, SIZE)", VECTOR),
    "Recomputed": _block("Recomputed(WIDTH, SIZE)", VECTOR),
    "SqueezeExcite": _block("SqueezeExcite(FIRST, SIZE)", IMAGE),
    "Residual": _block("Residual(FIRST, SIZE)", IMAGE),
    "InvertedResidual": _block("InvertedResidual(FIRST, 2 * SIZE)", IMAGE),
    "Spectral": _block("Spectral(FIRST)", IMAGE),
}
"""By name, like :data:`~tapml.distributed.fuzzing.layers.LAYERS`."""

KNOWN: Final[dict[str, Layer]] = {**LAYERS, **BLOCKS}
"""All that a gene may name."""

CLASSES: Final[dict[str, str]] = {
    "Patches": '''class Patches(nn.Module):
    """Patches of an image as steps of a sequence."""

    def __init__(self, channels, features):
        super().__init__()
        self.layer = nn.Conv2d(channels, features, 2, stride=2)

    def forward(self, x):
        return self.layer(x).flatten(2).transpose(1, 2)
''',
    "MeanOfSteps": """class MeanOfSteps(nn.Module):
    def forward(self, x):
        return x.mean(1)
""",
    "CausalAttention": '''class CausalAttention(nn.Module):
    """Attention to earlier steps, with rotary positions and one projection of all."""

    def __init__(self, steps, features):
        super().__init__()
        self.norm = nn.RMSNorm(features)
        self.mixed = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        angles = torch.arange(steps)[:, None] / 10 ** torch.linspace(0, 2, features // 2)
        self.register_buffer("cosine", angles.cos().repeat(1, 2))
        self.register_buffer("sine", angles.sin().repeat(1, 2), persistent=False)

    def turned(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-second, first], -1) * self.sine

    def forward(self, x):
        q, k, v = self.mixed(self.norm(x)).chunk(3, -1)
        q, k = self.turned(q), self.turned(k)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
''',
    "LinearAttention": '''class LinearAttention(nn.Module):
    """Attention without a softmax over the steps."""

    def __init__(self, features):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x):
        q, k = nn.functional.elu(self.q(x)) + 1, nn.functional.elu(self.k(x)) + 1
        scale = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)
        return x + q @ (k.transpose(1, 2) @ self.v(x)) / scale
''',
    "Positions": '''class Positions(nn.Module):
    """Learned positions: a parameter of the block itself."""

    def __init__(self, steps, features):
        super().__init__()
        self.added = nn.Parameter(torch.randn(steps, features) / 10)

    def forward(self, x):
        return x + self.added
''',
    "StateSpace": '''class StateSpace(nn.Module):
    """A diagonal state that each step decays and adds to."""

    def __init__(self, features, states):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-1, 1, states))
        self.into = nn.Linear(features, states)
        self.out = nn.Linear(states, features)

    def forward(self, x):
        added, kept, found = self.into(x), torch.sigmoid(self.rate), []
        state = torch.zeros_like(added[:, 0])
        for step in range(x.shape[1]):
            state = kept * state + added[:, step]
            found.append(state)
        return x + self.out(torch.stack(found, 1))
''',
    "BothDirections": '''class BothDirections(nn.Module):
    """A recurrent layer of two directions."""

    def __init__(self, features, size):
        super().__init__()
        self.layer = nn.LSTM(features, size, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * size, features)

    def forward(self, x):
        return self.out(self.layer(x)[0])
''',
    "GraphConvolution": '''class GraphConvolution(nn.Module):
    """Steps are nodes of one graph, whose normalized adjacency is a buffer."""

    def __init__(self, nodes, features):
        super().__init__()
        edges = (torch.rand(nodes, nodes) < 0.4).float()
        edges = ((edges + edges.T + torch.eye(nodes)) > 0).float()
        scale = edges.sum(1).rsqrt()
        self.register_buffer("adjacency", scale[:, None] * edges * scale)
        self.layer = nn.Linear(features, features)

    def forward(self, x):
        return torch.relu(self.adjacency @ self.layer(x)) + x
''',
    "MessagePassing": '''class MessagePassing(nn.Module):
    """Messages along edges, whose ends are buffers of integers, added up at their targets."""

    def __init__(self, nodes, features):
        super().__init__()
        self.register_buffer("ends", torch.randint(nodes, (2, 3 * nodes)))
        self.message = nn.Linear(2 * features, features)
        self.update = nn.GRUCell(features, features)

    def forward(self, x):
        source, target = self.ends
        sent = torch.tanh(self.message(torch.cat([x[:, source], x[:, target]], -1)))
        taken = torch.zeros_like(x).index_add(1, target, sent)
        return self.update(taken.flatten(0, 1), x.flatten(0, 1)).view_as(x)
''',
    "Experts": '''class Experts(nn.Module):
    """A mixture of experts: a gate picks two for each sample or step."""

    def __init__(self, features, experts):
        super().__init__()
        self.gate = nn.Linear(features, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(features, features) for _ in range(experts))

    def forward(self, x):
        scores, chosen = self.gate(x).topk(2, -1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, chosen, scores.softmax(-1))
        found = torch.stack([torch.relu(each(x)) for each in self.experts], -1)
        return x + (found * weights[..., None, :]).sum(-1)
''',
    "Gated": '''class Gated(nn.Module):
    """A gated layer, as of Llama."""

    def __init__(self, features, hidden):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
''',
    "Tied": '''class Tied(nn.Module):
    """An autoencoder whose two layers have one weight, under two names."""

    def __init__(self, features, hidden):
        super().__init__()
        self.one = nn.Linear(features, hidden, bias=False)
        self.two = nn.Linear(features, hidden)
        self.two.weight = self.one.weight

    def forward(self, x):
        hidden = torch.tanh(self.one(x)) + self.two(x)
        return x + nn.functional.linear(hidden, self.one.weight.t())
''',
    "Crossed": '''class Crossed(nn.Module):
    """A crossed layer, as of deep and cross networks."""

    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)

    def forward(self, x):
        return torch.tanh(x) * self.layer(x) + x
''',
    "RadialBasis": '''class RadialBasis(nn.Module):
    """Learned functions of each feature, sums of bells at places that are a buffer."""

    def __init__(self, features, bells):
        super().__init__()
        self.register_buffer("places", torch.linspace(-2, 2, bells))
        self.weight = nn.Parameter(torch.randn(features, bells, features) / 10)

    def forward(self, x):
        bells = torch.exp(-((x[..., None] - self.places) ** 2))
        return x + torch.einsum("nfb,fbo->no", bells, self.weight)
''',
    "Counting": '''class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, features):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x):
        self.calls += 1
        return x * self.scale
''',
    "LowRank": '''class LowRank(nn.Module):
    """A frozen layer with a trained change of low rank (LoRA)."""

    def __init__(self, features, rank):
        super().__init__()
        self.base = nn.Linear(features, features).requires_grad_(False)
        self.down = nn.Linear(features, rank, bias=False)
        self.up = nn.Linear(rank, features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))
''',
    "Recomputed": '''class Recomputed(nn.Module):
    """A layer whose activations are computed again in the backward pass."""

    def __init__(self, features, hidden):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features)
        )

    def forward(self, x):
        return x + torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
''',
    "SqueezeExcite": '''class SqueezeExcite(nn.Module):
    """Channels weighted by what the whole image has."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.down = nn.Linear(channels, hidden)
        self.up = nn.Linear(hidden, channels)

    def forward(self, x):
        weights = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))
        return x * weights[..., None, None]
''',
    "Residual": '''class Residual(nn.Module):
    """Two convolutions beside the image itself."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.one = nn.Conv2d(channels, hidden, 3, padding=1)
        self.norm = nn.GroupNorm(1, hidden)
        self.two = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))
''',
    "InvertedResidual": '''class InvertedResidual(nn.Module):
    """A wide convolution of each channel between two narrow ones."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.up = nn.Conv2d(channels, hidden, 1)
        self.each = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.down = nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        return x + self.down(nn.functional.relu6(self.each(nn.functional.relu6(self.up(x)))))
''',
    "Spectral": '''class Spectral(nn.Module):
    """Low frequencies of an image, each with a complex weight (Fourier operators)."""

    def __init__(self, channels):
        super().__init__()
        self.real = nn.Parameter(torch.randn(channels, channels) / channels)
        self.imaginary = nn.Parameter(torch.randn(channels, channels) / channels)

    def forward(self, x):
        found = torch.fft.rfft2(x)
        real = torch.einsum("nchw,cd->ndhw", found.real, self.real)
        imaginary = torch.einsum("nchw,cd->ndhw", found.imag, self.imaginary)
        return x + torch.fft.irfft2(torch.complex(real, imaginary), s=x.shape[2:])
''',
}
"""Sources of the classes that blocks name."""
