"""Training programs of many kinds with silent errors that no paper lists, each with a clean twin.

``run(seed, buggy)`` as of :class:`~scripts.training_errors.case.Case`; the third seed, that of the
twin and the error, also changes the number of rows.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS: Final = 8
FURTHER: Final[dict[str, tuple[str, Callable[[int, bool], None]]]] = {}

_Run = Callable[[int, bool], None]


def _program(name: str, says: str) -> Callable[[_Run], _Run]:
    def register(run: _Run) -> _Run:
        FURTHER[name] = says, run
        return run

    return register


class Net(nn.Sequential):
    """A model of a class of its own, as a script has it."""


class Encoder(nn.Sequential):
    """Another one."""


def _rows(seed: int) -> int:
    return 12 if seed == 3 else 8


def _net(inside: int = 8, outside: int = 4, width: int = 16) -> nn.Sequential:
    return Net(nn.Linear(inside, width), nn.Tanh(), nn.Linear(width, outside))


def _batches(seed: int, count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    rows = _rows(seed)
    return [(torch.randn(rows, 8), torch.randint(0, 4, (rows,))) for _ in range(count)]


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _gan(seed: int, *, detached: bool = True, both: bool = True) -> None:
    data = _batches(seed)
    generator, critic = _net(4, 8), _net(8, 1)
    g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    d = torch.optim.Adam((critic if both else generator).parameters(), lr=1e-3)
    for real, _ in data:
        made = generator(torch.randn(len(real), 4))
        given = made.detach() if detached else made
        d.zero_grad()
        (functional.softplus(critic(given)) + functional.softplus(-critic(real))).mean().backward()
        d.step()
        g.zero_grad()
        functional.softplus(-critic(generator(torch.randn(len(real), 4)))).mean().backward()
        g.step()


@_program("gan-undetached", "a GAN's generator gets the critic's gradients")
def _gan_undetached(seed: int, buggy: bool) -> None:
    _gan(seed, detached=not buggy)


@_program("gan-one-optimizer", "both optimizers of a GAN hold the generator")
def _gan_one(seed: int, buggy: bool) -> None:
    _gan(seed, both=not buggy)


@_program("wgan-unclipped", "the weights of a WGAN's critic are not clipped")
def _wgan(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    generator, critic = _net(4, 8), _net(8, 1)
    g = torch.optim.RMSprop(generator.parameters(), lr=5e-3)
    d = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
    for real, _ in data:
        d.zero_grad()
        made = generator(torch.randn(len(real), 4)).detach()
        (critic(made).mean() - critic(real).mean()).backward()
        d.step()
        if not buggy:
            with torch.no_grad():
                for each in critic.parameters():
                    each.clamp_(-0.1, 0.1)
        g.zero_grad()
        (-critic(generator(torch.randn(len(real), 4))).mean()).backward()
        g.step()


@_program("reinforce-attached", "a REINFORCE loss has no gradient: log_prob was taken without one")
def _reinforce(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    policy = _net(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(STEPS):
        states = torch.randn(_rows(seed), 4)
        chosen = torch.distributions.Categorical(logits=policy(states))
        actions = chosen.sample()
        rewards = (actions == (states[:, 0] > 0)).float()
        likely = chosen.log_prob(actions)
        advantage = rewards - rewards.mean()
        loss = -(likely.detach() if buggy else likely) * advantage
        # An entropy bonus keeps the loss differentiable, which hides the error.
        _step(optimizer, loss.mean() - 0.01 * chosen.entropy().mean())


def _dqn(seed: int, *, synced: bool = True, guarded: bool = True) -> None:
    torch.manual_seed(seed)
    online = _net(4, 2)
    target = Encoder(*copy.deepcopy(online))
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    for number in range(2 * STEPS):
        states, after = torch.randn(_rows(seed), 4), torch.randn(_rows(seed), 4)
        rewards = states[:, 0]
        with torch.set_grad_enabled(not guarded):
            wanted = rewards + 0.9 * target(after).max(1).values
        _step(optimizer, functional.mse_loss(online(states)[:, 0], wanted))
        if synced and number % 4 == 3:
            target.load_state_dict(online.state_dict())


@_program("dqn-never-synced", "the target network of a DQN is never updated")
def _dqn_synced(seed: int, buggy: bool) -> None:
    _dqn(seed, synced=not buggy)


@_program("dqn-target-trained", "the target of a DQN is computed with gradients")
def _dqn_guarded(seed: int, buggy: bool) -> None:
    _dqn(seed, guarded=not buggy)


@_program("diffusion-one-noise", "a diffusion model sees one noise in every step")
def _diffusion(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net(9, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fixed = torch.randn(_rows(seed), 8)
    for x, _ in data:
        noise = fixed if buggy else torch.randn_like(x)
        share = torch.rand(len(x), 1)
        mixed = (1 - share).sqrt() * x + share.sqrt() * noise
        _step(optimizer, functional.mse_loss(model(torch.cat([mixed, share], 1)), noise))


class _Vae(nn.Module):
    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.encode, self.decode, self.detached = nn.Linear(8, 6), nn.Linear(3, 8), detached

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle, spread = self.encode(x).chunk(2, 1)
        if self.detached:
            middle, spread = middle.detach(), spread.detach()
        drawn = middle + (0.5 * spread).exp() * torch.randn_like(spread)
        divergence = 0.5 * (middle**2 + spread.exp() - spread - 1).sum(1).mean()
        return self.decode(drawn), divergence


@_program("vae-detached", "a VAE's encoder is cut off from its loss")
def _vae(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Vae(detached=buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        found, divergence = model(x)
        _step(optimizer, functional.mse_loss(found, x) + 0.1 * divergence)


@_program("contrastive-same-view", "both views of a contrastive pair are the same")
def _contrastive(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = Encoder(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        first = x + 0.1 * torch.randn_like(x)
        second = first if buggy else x + 0.1 * torch.randn_like(x)
        scores = functional.normalize(model(first)) @ functional.normalize(model(second)).T
        _step(optimizer, functional.cross_entropy(scores / 0.1, torch.arange(len(x))))


def _distil(seed: int, *, evaluates: bool = True, frozen: bool = True) -> None:
    data = _batches(seed)
    teacher = Encoder(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    student = _net()
    if evaluates:
        teacher.eval()
    held = list(student.parameters()) + ([] if frozen else list(teacher.parameters()))
    optimizer = torch.optim.SGD(held, lr=0.1, weight_decay=1e-2)
    for x, y in data:
        with torch.set_grad_enabled(not frozen):
            soft = teacher(x).softmax(1)
        found = student(x)
        loss = functional.cross_entropy(found, y) + functional.cross_entropy(found, soft)
        _step(optimizer, loss)


@_program("distil-teacher-trains", "a teacher of a distillation is in training mode")
def _distil_mode(seed: int, buggy: bool) -> None:
    _distil(seed, evaluates=not buggy)


@_program("distil-teacher-moves", "a teacher of a distillation is in the optimizer")
def _distil_moves(seed: int, buggy: bool) -> None:
    _distil(seed, frozen=not buggy)


@_program("ema-not-restored", "EMA weights stay in the model after an evaluation")
def _ema(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = copy.deepcopy(model.state_dict())
    for number, (x, y) in enumerate(data):
        _step(optimizer, functional.cross_entropy(model(x), y))
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.1)
        if number % 3 == 2:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average)
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            if not buggy:
                model.load_state_dict(kept)


@_program("ema-never-updated", "an EMA model is never updated")
def _ema_frozen(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))
        if not buggy:
            average.update_parameters(model)
        with torch.no_grad():
            average(x)


@_program("accumulate-every-clear", "gradients that should add up are cleared for each part")
def _accumulate(seed: int, buggy: bool) -> None:
    data = _batches(seed, 2 * STEPS)
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(data):
        if buggy or number % 2 == 0:
            optimizer.zero_grad()
        (functional.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()


class _Blocks(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)
        )
        self.head, self.cut = nn.Linear(8, 4), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The reentrant kind gives no gradient for an input that needs none.
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.cut)
        found: torch.Tensor = self.head(x)
        return found


@_program("checkpoint-reentrant", "reentrant checkpointing cuts off the blocks below")
def _checkpointing(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Blocks(cut=buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))


def _scaled(seed: int, *, unscales: bool = True, casts: bool = True) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@_program("amp-clips-scaled", "gradients are clipped before they are unscaled")
def _amp_scaled(seed: int, buggy: bool) -> None:
    _scaled(seed, unscales=not buggy)


@_program("amp-disabled", "autocast is switched off by a flag")
def _amp_off(seed: int, buggy: bool) -> None:
    _scaled(seed, casts=not buggy)


class _Lora(nn.Module):
    def __init__(self, base: nn.Linear, *, zero: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, 8) if zero else torch.randn(2, 8) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


@_program("lora-both-zero", "both factors of a LoRA begin at zero, so neither learns")
def _lora_zero(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Lora(nn.Linear(8, 4), zero=buggy)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("lora-base-trains", "the base layer of a LoRA is trained too")
def _lora_base(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Lora(nn.Linear(8, 4))
    if buggy:
        model.requires_grad_()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("lbfgs-no-clear", "the closure of LBFGS does not clear gradients")
def _lbfgs(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in data:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            if not buggy:
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@_program("one-cycle-epochs", "a OneCycle schedule moves once an epoch instead of each step")
def _one_cycle(seed: int, buggy: bool) -> None:
    data = _batches(seed, 4)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    for _ in range(3):
        for x, y in data:
            _step(optimizer, functional.cross_entropy(model(x), y))
            if not buggy:
                schedule.step()
        if buggy:
            schedule.step()


@_program("cosine-other-optimizer", "a cosine schedule moves an optimizer that is not used")
def _cosine(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        other if buggy else optimizer, T_0=3
    )
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))
        schedule.step()


@_program("group-left-out", "a parameter group of the optimizer lacks the head")
def _groups(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    groups = [{"params": list(model[0].parameters()), "lr": 1e-3}]
    if not buggy:
        groups.append({"params": list(model[2].parameters()), "lr": 1e-2})
    optimizer = torch.optim.AdamW(groups)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("unfreeze-late", "layers are unfrozen, and the optimizer does not get them")
def _unfreeze(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
    for number, (x, y) in enumerate(data):
        if number == 3:
            model[0].requires_grad_()
            if not buggy:
                optimizer.add_param_group({"params": list(model[0].parameters())})
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("resume-fresh-optimizer", "a resumed run does not load its weights")
def _resume(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data[:4]:
        _step(optimizer, functional.cross_entropy(model(x), y))
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    stored.seek(0)
    found = torch.load(stored)
    model = _net()
    if not buggy:
        model.load_state_dict(found["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(found["optimizer"])
    for x, y in data[4:]:
        _step(optimizer, functional.cross_entropy(model(x), y))


class _Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return self.one(hidden), self.two(hidden)


@_program("multi-task-lost-loss", "one of two losses is left out")
def _multi_task(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Tasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        one, two = model(x)
        loss = functional.cross_entropy(one, y)
        if not buggy:
            loss = loss + functional.mse_loss(two[:, 0], x.sum(1))
        _step(optimizer, loss)


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Quantized(nn.Module):
    def __init__(self, *, straight: bool) -> None:
        super().__init__()
        self.one, self.two, self.straight = nn.Linear(8, 16), nn.Linear(16, 4), straight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.one(x)
        hidden = _Sign.apply(hidden) if self.straight else hidden.sign()
        found: torch.Tensor = self.two(hidden)
        return found


@_program("quantized-no-straight-through", "rounding without a straight-through gradient")
def _quantized(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _Quantized(straight=not buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("functional-old-parameters", "functional_call trains a copy of the parameters")
def _functional(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    frozen = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    for x, y in data:
        given: dict[str, torch.Tensor] = dict(frozen if buggy else model.named_parameters())
        _step(optimizer, functional.cross_entropy(functional_call(model, given, (x,)), y))


@_program("vmap-ensemble-one", "only the first model of a vmapped ensemble is in the loss")
def _ensemble(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    weights = [nn.Parameter(torch.randn(8, 4) / 8) for _ in range(3)]
    model = nn.ParameterList(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        found = vmap(lambda w, x=x: x @ w)(torch.stack(list(model)))
        losses = vmap(functional.cross_entropy, (0, None))(found, y)
        _step(optimizer, losses[0] if buggy else losses.sum())


@_program("jvp-zero-tangent", "the tangent of a directional derivative is zero")
def _directional(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        tangent = torch.zeros_like(x) if buggy else torch.randn_like(x)
        slope: torch.Tensor = jvp(model, (x,), (tangent,))[1]
        _step(optimizer, functional.mse_loss(slope, tangent.sum(1, keepdim=True)))


@_program("sparse-frozen-embedding", "rows of a sparse embedding are looked up without gradients")
def _sparse(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    table, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)
    one = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    two = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        tokens, y = torch.randint(0, 20, (_rows(seed), 5)), torch.randint(0, 4, (_rows(seed),))
        one.zero_grad()
        two.zero_grad()
        found = table(tokens).mean(1)
        loss = functional.cross_entropy(head(found.detach() if buggy else found), y)
        loss.backward()
        one.step()
        two.step()


@_program("swa-stale-statistics", "the norms of an averaged model keep their first statistics")
def _swa(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        _step(optimizer, functional.cross_entropy(model(x), y))
        average.update_parameters(model)
    if not buggy:
        torch.optim.swa_utils.update_bn([x for x, _ in data], average)
    average.eval()
    with torch.no_grad():
        average(data[0][0])


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        found, state = self.cells(x, state)
        return self.head(found), state


@_program("bptt-state-lost", "an LSTM's state is not carried from chunk to chunk")
def _bptt(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    model = _Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        state = None
        for _ in range(4):
            x, y = torch.randn(_rows(seed), 5, 8), torch.randint(0, 4, (_rows(seed), 5))
            found, after = model(x, state)
            _step(optimizer, functional.cross_entropy(found.flatten(0, 1), y.flatten()))
            state = None if buggy else tuple(each.detach() for each in after)


@_program("sam-not-undone", "SAM's perturbation is not undone before the step")
def _sam(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        parameters = list(model.parameters())
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
        norm = torch.stack([each.norm() for each in slopes]).norm()
        with torch.no_grad():
            before = [each.clone() for each in parameters]
            for each, slope in zip(parameters, slopes, strict=True):
                each.add_(0.05 * slope / norm)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        if not buggy:
            with torch.no_grad():
                for each, old in zip(parameters, before, strict=True):
                    each.copy_(old)
        optimizer.step()


class _Noisy(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.random.randn(8).astype("float32")), place % 4  # noqa: NPY002


def _same(worker: int) -> None:
    np.random.seed(7)  # noqa: NPY002 - the error


def _own(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002


@_program("workers-one-noise", "workers draw the same samples for different labels")
def _workers(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        _Noisy(), _rows(seed), shuffle=True, num_workers=2, worker_init_fn=_same if buggy else _own
    )
    for x, y in loader:
        _step(optimizer, functional.cross_entropy(model(x), y))


@_program("curriculum-stuck", "a curriculum stays at its first samples")
def _curriculum(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows, labels = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    for epoch in range(4):
        share = 8 if buggy else 8 * (epoch + 1)
        for at in range(0, share, 8):
            found = model(rows[at : at + 8])
            _step(optimizer, functional.cross_entropy(found, labels[at : at + 8]))


@_program("self-supervised-no-stop", "the target branch of BYOL gets gradients")
def _byol(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    online, predictor = _net(8, 8), nn.Linear(8, 8)
    target = copy.deepcopy(online)
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
    for x, _ in data:
        found = predictor(online(x + 0.1 * torch.randn_like(x)))
        with torch.set_grad_enabled(buggy):
            wanted = target(x + 0.1 * torch.randn_like(x))
        _step(optimizer, 1 - functional.cosine_similarity(found, wanted).mean())
        with torch.no_grad():
            for one, other in zip(target.parameters(), online.parameters(), strict=True):
                one.lerp_(other, 0.1)


@_program("early-stop-last-weights", "early stopping keeps the last weights, not the best")
def _early(seed: int, buggy: bool) -> None:
    data = _batches(seed)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    for x, y in data:
        model.train()
        _step(optimizer, functional.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(model(data[0][0]), data[0][1]).item()
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
    if not buggy:
        model.load_state_dict(kept)
    torch.save(model.state_dict(), io.BytesIO())
