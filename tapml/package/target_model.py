"""A moved model on its device: text in, text out; or a case in, vectors or classes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final, Self

import numpy.typing as npt

from tapml.compiler.preflight import BUFFER_ADVICE, check
from tapml.compiler.symbol_ranges import symbol_ranges
from tapml.execute.generate import NEW_TOKENS, GeneratedToken, check_lengths, greedy
from tapml.execute.plan_runner import PlanRunner
from tapml.execute.profiling import ProfilingRunner, TimedRun
from tapml.execute.sampling import GREEDY, Sampling
from tapml.models.chat_template import ChatRenderer, Messages
from tapml.models.text import Codec, TextStream
from tapml.package.runnable import Runnable, difference_from, open_device
from tapml.plan.plan_notes import notes_of
from tapml.workloads import workload_of
from tapml.workloads.one_call import OneCall
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, LimitExceededError

_PROBLEMS_SHOWN: Final = 2


class TargetModel:
    """A model on its target alone; a context manager that gives the device back.

    Made by :func:`tapml.load_package`. One text is generated at a time.

    Parameters
    ----------
    runnable
        The model.
    device
        ``opencl:1``, or one elsewhere (``tcp://board:9190``); None for the device it was validated
        on, or the platform's best one.
    own_process
        Whether a process of its own drives the device.
    profile
        Whether every operator is timed, which takes time itself; see :attr:`runs`.
    say
        Takes a line where something else takes time: a tracker's queue, a text of the session.

    Attributes
    ----------
    name
        The model's name.
    context_length
        Prompt and generated tokens together.
    device
        Where it runs.
    notes
        How that differs from where it was validated, and whether a text of the session comes out
        there as well; which branches its numbers have to take; that it is simulated. A sentence
        each.

    Raises
    ------
    LimitExceededError
        If the device cannot run a kernel; it names the kernel, the limit and the need.
    NoSuchDeviceError
        If there is no such device.
    """

    def __init__(
        self,
        runnable: Runnable,
        device: str | None = None,
        *,
        own_process: bool = False,
        profile: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._runnable = runnable
        self._model: Any = runnable.model
        self.workload = workload_of(runnable.model)
        self.name = runnable.model.name
        self.context_length = runnable.model.context_length
        # Texts generated so far: a device holds the state of one.
        self._texts = 0
        with ExitStack() as stack:
            session = stack.enter_context(
                open_device(runnable, device, own_process=own_process, say=say)
            )
            try:
                kind = ProfilingRunner if profile else PlanRunner
                runner = kind(runnable.plan, runnable.weights, runnable.library, session)
            except LimitExceededError as error:
                raise _too_small(runnable, session.device) from error
            self._runner = stack.enter_context(runner)
            session.fence()
            self._session = session
            self.device: DeviceDescription = session.device
            difference = difference_from(runnable.validated, session.device)
            self.notes = notes_of(runnable.plan)
            if difference:
                self.notes = (f"{difference}: {self._checked(say)}", *self.notes)
            if self.device.device_type == "simulated":
                said = "executes the text of kernels on a processor: its times say nothing of a GPU"
                self.notes = (*self.notes, f"{self.device.name}, {said}")
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TargetModel({self.name!r} on {self.device.name!r})"

    @cached_property
    def codec(self) -> Codec:
        """The model's tokenizer.

        Raises
        ------
        InputError
            If the model takes token ids alone.
        """
        return self._runnable.open_codec()

    def chat(self, messages: Messages) -> tuple[int, ...]:
        """Token ids of a conversation, as the model's chat template writes it.

        Parameters
        ----------
        messages
            Each with a ``role`` (``system``, ``user``, ``assistant``) and a ``content``.

        Raises
        ------
        InputError
            If the model has no chat template or no tokenizer, jinja2 is not installed, or the
            template refuses the conversation.
        """
        # The template writes the begin token itself.
        return self.codec.encode(self._chat.render(messages), special=False)

    @cached_property
    def _chat(self) -> ChatRenderer:
        template = self._runnable.chat_template
        if template is None:
            raise InputError(f"{self.name} has no chat template: give the prompt as it is")
        return self._stack.enter_context(ChatRenderer(template))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = NEW_TOKENS,
        sampling: Sampling = GREEDY,
    ) -> str:
        """The text that follows a prompt; see :meth:`stream`."""
        return "".join(self.stream(prompt, max_new_tokens=max_new_tokens, sampling=sampling))

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = NEW_TOKENS,
        sampling: Sampling = GREEDY,
    ) -> Iterator[str]:
        """Generate; yields text as soon as it is there, without the prompt.

        Parameters
        ----------
        prompt
            Text, or token ids.
        max_new_tokens
            At most how many tokens; fewer where an end token comes or the context is full.
        sampling
            How tokens are chosen; the most probable one if not given.

        Raises
        ------
        InputError
            If the prompt is empty or longer than the context, or the model has no tokenizer.
        """
        ids = self.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        self._check_generates()
        self._model.check_tokens(ids)
        stream = self.codec.stream(ids)
        tokens = self.generate_tokens(ids, max_new_tokens=max_new_tokens, sampling=sampling)
        return _texts(stream, tokens)

    def generate_tokens(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int = NEW_TOKENS,
        sampling: Sampling = GREEDY,
    ) -> Iterator[int]:
        """Generate; yields token ids, an end token last. See :meth:`stream`.

        Raises
        ------
        InputError
            If the prompt is empty or longer than the context, a token is not in the vocabulary,
            or another text was begun before this one has ended.
        """
        steps = self.generate_steps(token_ids, max_new_tokens=max_new_tokens, sampling=sampling)
        return (step.token for step in steps)

    def generate_steps(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int = NEW_TOKENS,
        sampling: Sampling = GREEDY,
    ) -> Iterator[GeneratedToken]:
        """Generate; yields tokens with the logits they were taken from. See `generate_tokens`."""
        ids = tuple(int(token) for token in token_ids)
        self._check_generates()
        self._model.check_tokens(ids)
        sampling.check_bias(self._model.vocabulary)
        room = self.context_length - len(ids) + 1
        count = min(max_new_tokens, room) if room > 0 else max_new_tokens
        check_lengths(self._model, len(ids), count)
        self._texts += 1
        return self._steps(ids, count, self._texts, sampling)

    def outputs(self, case: Any) -> npt.NDArray[Any]:
        """The rows that a model of one call gives for a case, or for its plain form.

        An encoder's case is sentences of token ids: the mean vector of each, then the vectors of
        all tokens; or a row of classes each. A plain module's is an array.

        Raises
        ------
        InputError
            If the case does not fit, or the model generates text.
        """
        workload = self._one_call()
        return workload.rows(workload.as_case(case), self.run(case))

    def call(self, case: Any, *, max_new_tokens: int = NEW_TOKENS) -> dict[str, npt.NDArray[Any]]:
        """Every output of such a model by name, in its shape; see :meth:`outputs`.

        An encoder-decoder gives the tokens that it writes, at most `max_new_tokens`.
        """
        return self._one_call().by_name(self.run(case, max_new_tokens=max_new_tokens))

    def run(self, case: Any, *, max_new_tokens: int = NEW_TOKENS) -> list[npt.NDArray[Any]]:
        """The outputs of such a model in order; of an encoder-decoder the logits of each token."""
        workload = self._one_call()
        return workload.call(self._runner, workload.as_case(case), max_new_tokens)

    def _one_call(self) -> OneCall[Any]:
        if not isinstance(self.workload, OneCall):
            raise InputError(f"{self.name} generates text: use generate or generate_tokens")
        return self.workload

    def _check_generates(self) -> None:
        if not self.workload.generates:
            raise InputError(f"{self.name} generates no text: use outputs")

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text.

        Raises
        ------
        InputError
            If the model has no tokenizer.
        """
        return self.codec.encode(text)

    @property
    def runs(self) -> tuple[TimedRun, ...]:
        """The runs so far with the time of every operator; none unless it was asked to profile."""
        return tuple(getattr(self._runner, "runs", ()))

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text."""
        return frozenset(self._model.end_tokens)

    @property
    def device_bytes(self) -> int:
        """Device memory taken so far at most: weights, state, inputs, outputs, intermediates."""
        return self._session.peak_bytes + self._runner.workspace_bytes

    def close(self) -> None:
        """Free the weights and give the device back."""
        self._stack.close()

    def _checked(self, say: Callable[[str], None] | None) -> str:
        """What a text of the session says of this device."""
        sample = self._runnable.sample
        if sample is None:
            return "nobody has checked it here"
        if say is not None:
            say("another device than it was validated on: generating a text of its session again")
        return sample.compared(lambda ids, count: self.generate_tokens(ids, max_new_tokens=count))

    def _steps(
        self, ids: tuple[int, ...], count: int, number: int, sampling: Sampling
    ) -> Iterator[GeneratedToken]:
        steps = greedy(self._model, self._runner, ids, count, choose=sampling.chooser())
        while True:
            if number != self._texts:
                raise InputError(
                    "another text was begun on this model before this one has ended: the device "
                    "holds the state of one; load it twice, or take one text after the other"
                )
            step = next(steps, None)
            if step is None:
                return
            yield step


def _too_small(runnable: Runnable, device: DeviceDescription) -> LimitExceededError:
    """What a device lacks: the first few kernels, and how many there are."""
    problems = check(runnable.library, device.limits, ranges=symbol_ranges(runnable.plan))
    more = len(problems) - _PROBLEMS_SHOWN
    return LimitExceededError(
        f"{device.name} ({device.vendor_platform}) cannot run {runnable.model.name}: "
        + "; ".join(map(str, problems[:_PROBLEMS_SHOWN]))
        + (f"; and {more} more" if more > 0 else "")
        + (f" ({BUFFER_ADVICE})" if any(each.is_tensor_size for each in problems) else "")
        + ". Choose another of `tapml devices` (--device), or move the model to this one "
        "(`tapml offload --device`)"
    )


def _texts(stream: TextStream, tokens: Iterator[int]) -> Iterator[str]:
    for token in tokens:
        if text := stream.push(token):
            yield text
    if rest := stream.finish():
        yield rest
