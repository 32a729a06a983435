"""Policies and values learned from rewards."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from scripts.training_errors.further.program import STEPS, Encoder, net, program, rows_of, step


@program("reinforce-attached", "a REINFORCE loss has no gradient: log_prob was taken without one")
def _reinforce(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    policy = net(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(STEPS):
        states = torch.randn(rows_of(seed), 4)
        chosen = torch.distributions.Categorical(logits=policy(states))
        actions = chosen.sample()
        rewards = (actions == (states[:, 0] > 0)).float()
        likely = chosen.log_prob(actions)
        advantage = rewards - rewards.mean()
        loss = -(likely.detach() if buggy else likely) * advantage
        # An entropy bonus keeps the loss differentiable, which hides the error.
        step(optimizer, loss.mean() - 0.01 * chosen.entropy().mean())


def _dqn(seed: int, *, synced: bool = True, guarded: bool = True) -> None:
    torch.manual_seed(seed)
    online = net(4, 2)
    target = Encoder(*copy.deepcopy(online))
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    for number in range(2 * STEPS):
        states, after = torch.randn(rows_of(seed), 4), torch.randn(rows_of(seed), 4)
        rewards = states[:, 0]
        with torch.set_grad_enabled(not guarded):
            wanted = rewards + 0.9 * target(after).max(1).values
        step(optimizer, functional.mse_loss(online(states)[:, 0], wanted))
        if synced and number % 4 == 3:
            target.load_state_dict(online.state_dict())


@program("dqn-never-synced", "the target network of a DQN is never updated")
def _dqn_synced(seed: int, buggy: bool) -> None:
    _dqn(seed, synced=not buggy)


@program("dqn-target-trained", "the target of a DQN is computed with gradients")
def _dqn_guarded(seed: int, buggy: bool) -> None:
    _dqn(seed, guarded=not buggy)
