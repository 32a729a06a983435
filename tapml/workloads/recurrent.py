"""Recurrent models of text: a decoder's prompts and logits, over a state that does not grow."""

from __future__ import annotations

from tapml.workloads.decoder import DecoderWorkload


class RecurrentWorkload(DecoderWorkload):
    """Prefill takes a prompt of two tokens or more, decode any single token.

    Every case begins with the model's first state: a runner resets it.
    """


WORKLOAD = RecurrentWorkload
