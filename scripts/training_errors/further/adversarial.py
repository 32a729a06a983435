"""Generators and critics."""

from __future__ import annotations

import torch
from torch.nn import functional

from scripts.training_errors.further.program import batches, net, program


def _gan(seed: int, *, detached: bool = True, both: bool = True) -> None:
    data = batches(seed)
    generator, critic = net(4, 8), net(8, 1)
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


@program("gan-undetached", "a GAN's generator gets the critic's gradients")
def _gan_undetached(seed: int, buggy: bool) -> None:
    _gan(seed, detached=not buggy)


@program("gan-one-optimizer", "both optimizers of a GAN hold the generator")
def _gan_one(seed: int, buggy: bool) -> None:
    _gan(seed, both=not buggy)


@program("wgan-unclipped", "the weights of a WGAN's critic are not clipped")
def _wgan(seed: int, buggy: bool) -> None:
    data = batches(seed)
    generator, critic = net(4, 8), net(8, 1)
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
