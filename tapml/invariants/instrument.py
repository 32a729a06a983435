"""Hooks and wrappers that let a recorder see a training process; the script stays as it is.

Optimizers have global hooks in PyTorch. Where it has none, or slow ones (modules, ``backward``,
``zero_grad``, data loaders, collectives, ``torch.save``), the function is wrapped, and unwrapped at
the end. Nothing here draws random numbers or writes to a tensor of the run.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed
import torch.nn.init
import torch.nn.utils
import torch.overrides
import torch.utils.data
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from tapml.invariants.functions import FunctionMode, seen_by_others
from tapml.invariants.inputs import Inputs
from tapml.invariants.looks import (
    GradientsLeft,
    acts_on_gradients,
    graph_of,
    parameters_of,
    read_once,
    weights_in,
)
from tapml.invariants.module_calls import ModuleCalls
from tapml.invariants.modules import trains
from tapml.invariants.needs import Needs
from tapml.invariants.record import (
    AGAIN,
    BACKWARD,
    BATCH,
    CARRIED,
    CLIPS,
    CURRENT,
    GRAPH,
    INITIALISE,
    LOAD_SCHEDULE,
    MAKE,
    OVERWRITE,
    RATE,
    SAVE,
    SCHEDULE,
    SCHEDULE_PLACE,
    SCHEDULED,
    STEP,
    UNUSED,
    VARIABLE,
    ZERO_GRAD,
    Value,
)
from tapml.invariants.recorder import Recorder, current
from tapml.invariants.scores import Scores
from tapml.invariants.summaries import (
    bits_of,
    digest_of_all,
    summarise_batch,
    summarise_call,
    summarise_result,
)
from tapml.invariants.taking_turns import TakingTurns
from tapml.invariants.variables import Variables
from tapml.invariants.wrapped import (
    COLLECTIVES,
    INITIALISERS,
    MUTED,
    NOTED,
    PEER,
    SCHEDULERS,
    TRAIN,
    compiles,
    holder_of,
)


class Instruments:
    """The hooks of one recording.

    Parameters
    ----------
    recorder
        Takes the rows.
    after_step
        Called at the end of each optimizer step, which still has its number.
    needs
        What a watched run has to see; None records all, as of
        :class:`~tapml.invariants.variables.Variables`.
    """

    def __init__(
        self,
        recorder: Recorder,
        after_step: Callable[[], None] | None = None,
        *,
        needs: Needs | None = None,
    ) -> None:
        self.recorder = recorder
        self.variables = Variables(needs)
        self._needs = needs
        self._inputs = Inputs(needs)
        self._left = GradientsLeft()
        self._scores = Scores() if needs is None or needs.scores else None
        self._mode: FunctionMode | None = None
        self._after_step = after_step
        self._modules = ModuleCalls(recorder, self.variables, self._inputs, needs)
        self._optimizers = TakingTurns()
        # Of one that raised in its step, as long as it lives: its calls and what there was before.
        self._open_steps: WeakKeyDictionary[
            torch.optim.Optimizer, tuple[int, int, dict[str, str]]
        ] = WeakKeyDictionary()
        self._within: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._stepped: set[int] = set()
        self._gathering: set[type[torch.optim.Optimizer]] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record inside the block; functions and tensor methods only if they are needed."""
        with ExitStack() as stack:
            self._patches = stack
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                self.recorder.joins(
                    torch.distributed.get_rank(), torch.distributed.get_world_size()
                )
            stack.enter_context(current(self.recorder))
            for handle in (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_optimizer_step),
            ):
                stack.callback(handle.remove)
            stack.enter_context(self._modules.installed())
            self._wrap(torch.optim.Optimizer, "__init__", self._made_optimizer)
            self._wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
            self._wrap(torch.nn.Module, "zero_grad", self._zero_grad)
            self._wrap(torch.autograd, "backward", self._backward)
            self._wrap(torch, "save", self._save)
            self._wrap(torch, "compile", compiles)
            self._wrap(dataloader._BaseDataLoaderIter, "__next__", self._next_batch)
            self._wrap(torch.utils.data.DataLoader, "__iter__", self._epoch)
            for holder, attribute, name in NOTED:
                self._wrap(holder_of(holder), attribute, functools.partial(self._noted, name))
            for name, method in SCHEDULERS:
                api = SCHEDULE if method == "step" else LOAD_SCHEDULE
                holder = holder_of(f"torch.optim.lr_scheduler.{name}")
                self._wrap(holder, method, functools.partial(self._noted, api))
            for name in INITIALISERS:
                run = functools.partial(self._initialise, name)
                self._wrap(torch.nn.init, name, run)
            self._wrap(torch.nn.Module, "__setattr__", self._set_attribute)
            if torch.distributed.is_available():
                self._wrap_distributed()
            if self._needs is None or self._needs.functions:
                self._mode = stack.enter_context(
                    FunctionMode(self.recorder, self._needs, self._looks, self._inputs.picks)
                )
                self._modules.mode = self._mode
                stack.callback(self._mode.optimizer_ends)
                if self._needs is not None:
                    self.variables.versions_tell = self._mode.versions_tell
                asked = torch.overrides.has_torch_function
                stack.callback(setattr, torch.overrides, "has_torch_function", asked)
                torch.overrides.has_torch_function = seen_by_others(asked)  # type: ignore[assignment]
            yield

    def _looks(self, name: str, args: Sequence[Any], result: Any) -> dict[str, Value]:
        """At a loss, before its call with a result of None, and after it."""
        if result is None:
            return self._inputs.target(name, args, self.recorder.step)
        evaluated = self.recorder.context.stage == "eval" and not torch.is_grad_enabled()
        plain = type(result) is torch.Tensor and result.numel() == 1
        if self._scores is not None and evaluated and plain and bits_of(result) is not None:
            self._scores.add(name, float(result), self.variables.left())
        return {}

    def _wrap(self, holder: Any, attribute: str, run: Callable[..., Any]) -> None:
        original = getattr(holder, attribute)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            joins = attribute == "init_process_group"
            if self.recorder.muted and not (joins and self.recorder.wakes()):
                return original(*args, **kwargs)
            return run(original, args, kwargs)

        setattr(holder, attribute, wrapped)
        self._patches.callback(setattr, holder, attribute, original)

    def _wrap_distributed(self) -> None:
        from torch.distributed import distributed_c10d

        for name in COLLECTIVES:
            run = functools.partial(self._collective, f"torch.distributed.{name}")
            # The package re-exports the functions, and its parts call each other by either name.
            self._wrap(distributed_c10d, name, run)
            before = getattr(torch.distributed, name)
            setattr(torch.distributed, name, getattr(distributed_c10d, name))
            self._patches.callback(setattr, torch.distributed, name, before)
        self._wrap(distributed_c10d, "init_process_group", self._joined)
        before = torch.distributed.init_process_group
        torch.distributed.init_process_group = distributed_c10d.init_process_group
        self._patches.callback(setattr, torch.distributed, "init_process_group", before)

    def _call(
        self,
        name: str,
        run: Callable[[], Any],
        fields: Mapping[str, Value],
        *,
        inside: bool = True,
        result: Callable[[Any], Mapping[str, Value]] = summarise_result,
        digest: Callable[[Any], str] | None = None,
    ) -> Any:
        """Run something between two rows; with `inside` false, what it calls is not recorded."""
        recorder = self.recorder
        number = recorder.enter(name, fields)
        try:
            if inside:
                value = run()
            else:
                with recorder.mute():
                    value = run()
        except BaseException as error:
            recorder.leave(number, {"raised": type(error).__name__})
            raise
        with recorder.mute():
            recorder.leave(number, result(value), digest(value) if digest else "")
        return value

    def _noted(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        stack = self.recorder.open_calls()
        if stack and stack[-1].name == name:
            # Module.train calls itself for every child.
            return original(*args, **kwargs)
        if name == TRAIN and any(each is args[0] for each in self.variables.whole_models()):
            self._modules.followed = weakref.ref(args[0])
        if name in CLIPS:
            clipped, args, kwargs = read_once("parameters", args, kwargs)
        given = args[1:] if not name.startswith("torch.nn.utils") else args
        with self.recorder.mute():
            fields = summarise_call(given, kwargs)
        if name in CLIPS:
            with self.recorder.aside():
                fields["gradients"] = acts_on_gradients(clipped, self.variables.parameters)
        if name == SCHEDULE and self._optimizers and getattr(args[0], "last_epoch", 0) >= 0:
            # A wrapper of an optimizer has the groups of the one inside it.
            groups = getattr(getattr(args[0], "optimizer", None), "param_groups", [])
            fields[SCHEDULED] = not self._stepped.isdisjoint(map(id, groups))
            if getattr(args[0], "optimizer", None) in self._optimizers:
                fields[SCHEDULE_PLACE] = self._optimizers.place(args[0].optimizer)
        return self._call(name, lambda: original(*args, **kwargs), fields, inside=name not in MUTED)

    def _initialise(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self.recorder.mute():
            fields = summarise_call(args, kwargs)
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor):
                fields[VARIABLE] = self.variables.number(tensor)
                # The line itself, which may be PyTorch's: its layers refine what their parts did.
                caller = sys._getframe(2)
                fields["line"] = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return self._call(
            INITIALISE + name, lambda: original(*args, **kwargs), fields, inside=False
        )

    def _set_attribute(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        module, name, value = args
        before = module.__dict__.get(name)
        original(*args, **kwargs)
        if type(before) not in _OWN or type(value) not in _OWN or before == value:
            return
        # The frame that sets it: this wrapper and its caller are on top.
        setter = sys._getframe(2)
        if not name.startswith("_") and setter.f_locals.get("self") is not module:
            fields = {"class": type(module).__qualname__, "attribute": name}
            number = self.recorder.enter(OVERWRITE, {**fields, "from": before, "to": value})
            self.recorder.leave(number, {})

    # Optimizers

    def _made_optimizer(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        optimizer = args[0]

        def made(_: None) -> dict[str, Value]:
            fields: dict[str, Value] = {"groups": len(optimizer.param_groups)}
            if self._needs is None or MAKE in self._needs.whole:
                with self.recorder.aside():
                    fields[AGAIN] = self.variables.are_as_left(parameters_of(optimizer))
            return fields

        self._call(
            MAKE,
            lambda: original(*args, **kwargs),
            {"class": type(optimizer).__qualname__},
            result=made,
        )
        self.variables.add_optimizer(optimizer)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self.recorder
        if recorder.muted:
            # A forked child is recorded from its second step on.
            recorder.wakes()
            return
        if optimizer in self._open_steps:
            # A class may call the step of its base, which has the hooks too once one was made.
            if _steps_already(optimizer):
                self._within[optimizer] = self._within.get(optimizer, 0) + 1
                return
            self._within.pop(optimizer, None)
        kind = type(optimizer)
        with recorder.aside():
            recorder.begin_training()
            self.variables.add_optimizer(optimizer)
            before = self.variables.values()
            again = optimizer in self._optimizers
            if not again:
                self.variables.check_seen(optimizer)
            place = self._optimizers.place(optimizer)
            self._stepped.update(map(id, optimizer.param_groups))
            fields: dict[str, Value] = {"class": kind.__qualname__, "optimizer": place}
            fields["gradients"] = self.variables.gradient_state()
            carried = self._left.carried(optimizer)
            if carried is not None:
                fields[CARRIED] = carried
            rates = [group.get("lr") for group in optimizer.param_groups]
            if all(type(rate) is float and rate == 0 for rate in rates):
                fields[RATE] = True
            # A step that raised may have changed some of them. Before an optimizer's first step, as
            # in another fold, its parameters may have been initialised again.
            asked = self._needs is None or self._needs.between
            if asked and again and not self._open_steps:
                moved = self.variables.moved(before)
                if moved is not None:
                    fields["moved"] = moved
            number = recorder.enter(STEP, fields)
            inner = recorder.enter(f"{kind.__module__}.{kind.__qualname__}.step", {})
            self._open_steps[optimizer] = number, inner, before
        if self._mode is not None:
            self._gather_unheard(kind)
            self._mode.optimizer_begins(kind.__qualname__, parameters_of(optimizer))

    def _gather_unheard(self, kind: type[torch.optim.Optimizer]) -> None:
        """PyTorch's optimizers read many attributes of each parameter in this method."""
        mode, name = self._mode, "_init_group"
        holder = next((each for each in kind.__mro__ if name in vars(each)), None)
        if mode is None or self._needs is None or holder is None or holder in self._gathering:
            return
        self._gathering.add(holder)

        def run(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return mode.gathers(args[0], original)(*args, **kwargs)

        self._wrap(holder, name, run)

    def _after_optimizer_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> None:
        recorder = self.recorder
        if self._within.get(optimizer):
            self._within[optimizer] -= 1
            return
        if self._mode is not None:
            self._mode.optimizer_ends()
        if recorder.muted or optimizer not in self._open_steps:
            return
        number, inner, before = self._open_steps.pop(optimizer)
        if self._mode is not None:
            self._mode.stepping = bool(self._open_steps)
        with recorder.aside():
            recorder.leave(inner, {})
            recorder.leave(number, self.variables.note_step(recorder, before))
            self._left.stepped(optimizer, parameters_of(optimizer))
            if self._optimizers.begins(optimizer):
                self.variables.note_states(recorder)
                try:
                    if self._after_step is not None:
                        self._after_step()
                finally:
                    recorder.step += 1
                recorder.flush()

    def _zero_grad(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with self.recorder.aside():
            self.recorder.begin_training()
            parameters = parameters_of(args[0])
            self._follow_mode(parameters)
            before = self.variables.gradients(ZERO_GRAD)
            gradients = self.variables.gradient_state(parameters)
            owner = self._left.owner(args[0], parameters)
            unused = None if owner is None else self._left.unused(owner)
        quiet = self._mode.unheard(ZERO_GRAD, parameters) if self._mode else nullcontext()

        def run() -> None:
            with quiet:
                original(*args, **kwargs)
            with self.recorder.aside():
                self.variables.note_gradients(self.recorder, before, ZERO_GRAD)
                self._left.cleared(owner, parameters)

        fields = {**summarise_call(args[1:], kwargs), "gradients": gradients}
        if owner is not None:
            fields |= {"place": self._optimizers.place(owner), UNUSED: unused}
        self._call(ZERO_GRAD, run, fields)

    def _backward(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        stack = self.recorder.open_calls()
        if stack and stack[-1].name == BACKWARD:
            # With other modes, or tensors of other classes, it goes through them to itself.
            original(*args, **kwargs)
            return
        nodes = None if self._needs is None else self._needs.nodes
        roots = args[0] if args else kwargs.get("tensors")
        with self.recorder.aside():
            before = self.variables.gradients(BACKWARD)
            asked = nodes is None or nodes
            fields: dict[str, Value] = {GRAPH: graph_of(roots, nodes)} if asked else {}

        def run() -> None:
            with self._mode.without() if self._mode else nullcontext():
                original(*args, **kwargs)
            with self.recorder.aside():
                self.variables.note_gradients(self.recorder, before, BACKWARD)

        self._call(BACKWARD, run, fields)

    def _follow_mode(self, held: Sequence[torch.Tensor] = ()) -> None:
        """Take the mode of the model that ran, or whose mode was set, last.

        Gradients are cleared to train: of these parameters, the mode of their model counts too.
        """
        context, models = self.recorder.context, self.variables.whole_models()
        if context.stage != "init" and (models or held):
            followed = [each for each in models if each is self._modules.followed()]
            last = (followed or models)[-1:]
            context.follow(any(each.training for each in last) or trains(models, held))

    # Data, checkpoints

    def _next_batch(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        loader = args[0]
        self._follow_mode()
        fields: dict[str, Value] = {"workers": int(getattr(loader, "_num_workers", 0))}
        fields["place"] = int(getattr(loader, "_num_yielded", 0))
        with suppress(Exception):  # A script's own sampler may fail to tell its length.
            fields["batches"] = len(loader)
        compared = self._needs is None or self._needs.batches
        batch = self._call(
            BATCH,
            lambda: original(*args, **kwargs),
            fields,
            # A data set may call functions for every element.
            inside=False,
            result=summarise_batch if compared else summarise_result,
            digest=digest_of_all if compared else None,
        )
        with self.recorder.aside():
            self._inputs.origins.delivered(loader, batch)
        return batch

    def _epoch(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.recorder.context.begin_epoch()
        return original(*args, **kwargs)

    def _save(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        saved = weights_in(args[0] if args else kwargs.get("obj"))
        wanted = self.variables.saved_names()
        fields: dict[str, Value] = {}
        if not wanted.isdisjoint(saved):
            missing = wanted - saved.keys()
            fields = {"weights": True, "missing": sorted(missing)[:8]}
            fields["missing.count"] = len(missing)
            with self.recorder.aside():
                if self._scores is not None:
                    fields |= self._scores.saved(self.variables.digests(saved))
                if self._needs is None or self._needs.saved:
                    fields[CURRENT] = self.variables.has(saved)
        self._call(SAVE, lambda: original(*args, **kwargs), fields, inside=False)

    # Ranks

    def _joined(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        original(*args, **kwargs)
        self.recorder.joins(torch.distributed.get_rank(), torch.distributed.get_world_size())

    def _collective(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        recorder = self.recorder
        short = name.rpartition(".")[2]
        given = kwargs.get("tensor", args[0] if args else None)
        with recorder.mute():
            fields = summarise_call(args, kwargs)
            if short in PEER:
                peer = kwargs.get(PEER[short], args[1] if len(args) > 1 else None)
                fields["peer"] = peer if isinstance(peer, int) else -1
            if "reduce" in short:
                fields["op"] = str(kwargs.get("op", "default"))
            number = recorder.enter(name, fields, digest_of_all(given) if "send" in short else "")
            self.variables.let_go()
            # A mismatch may end the process here.
            recorder.flush(wait=True)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                recorder.leave(number, {"raised": type(error).__name__})
                raise
            recorder.leave(number, {}, digest_of_all(given) if short == "recv" else "")
        return result


def _steps_already(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step whose hook runs is a part of another one of the same optimizer."""
    frame: FrameType | None = sys._getframe(2)
    code = frame.f_code if frame is not None else None
    while frame is not None and (frame := frame.f_back) is not None:
        if frame.f_code is code and frame.f_locals.get("self") is optimizer:
            return True
    return False


_OWN: Final = (int, float, str)
