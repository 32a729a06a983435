"""Forward calls of modules, seen where PyTorch calls any of them.

Global hooks would see them too, but make each call of a module take PyTorch's longer way.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tapml.invariants.functions import FunctionMode
from tapml.invariants.inputs import Inputs
from tapml.invariants.looks import untracked_norms
from tapml.invariants.modules import is_model, module_name, parts_of_module
from tapml.invariants.needs import Needs
from tapml.invariants.record import FORWARD, UNTRACKED, Value
from tapml.invariants.recorder import Recorder
from tapml.invariants.summaries import (
    Shared,
    digest_of_all,
    is_finite_number,
    summarise_call,
    summarise_module,
    summarise_result,
)
from tapml.invariants.variables import Variables


class ModuleCalls:
    """Records calls of modules; the outermost with parameters is a model.

    Parameters
    ----------
    recorder
        Takes the rows.
    variables
        Take the models.
    inputs
        Compare what models are given.
    needs
        As of :class:`~tapml.invariants.variables.Variables`.

    Attributes
    ----------
    followed
        Gives the model whose mode is that of the run, if it still exists.
    mode
        The function mode, if there is one.
    """

    def __init__(
        self, recorder: Recorder, variables: Variables, inputs: Inputs, needs: Needs | None
    ) -> None:
        self.followed: Callable[[], torch.nn.Module | None] = lambda: None
        self.mode: FunctionMode | None = None
        self._recorder = recorder
        self._variables = variables
        self._inputs = inputs
        self._needs = needs
        self._shared = None if needs is None else Shared()
        self._local = threading.local()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See the calls inside the block."""
        original = torch.nn.Module._call_impl
        seeing = self._seeing(original)
        # All ways of calling a module lead here, also of a class with a ``__call__`` of its own.
        torch.nn.Module._call_impl = seeing  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module._call_impl = original  # type: ignore[method-assign]
            _give_back(seeing, original)

    def _seeing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement of ``torch.nn.Module._call_impl``."""
        recorder, needs, local = self._recorder, self._needs, self._local
        is_compiling, is_tracing = torch.compiler.is_compiling, torch._C._get_tracing_state

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # What is looked at here would become a part of a trace.
            if recorder.muted or is_compiling() or is_tracing() is not None:
                return original(module, *args, **kwargs)
            # Threads call models side by side.
            depth = getattr(local, "depth", 0)
            outer = depth > 0
            name = module_name(module)
            blind = outer and needs is not None and name not in needs.whole
            whole = None
            if outer:
                self._variables.add_part(module)
            elif self.mode is not None:
                # An optimizer that raised told nobody.
                self.mode.optimizer_ends()
            if blind:
                recorder.touch(name)
                number = recorder.enter_blind(name)
            else:
                # What is looked at here calls nothing that is wrapped.
                with torch._C.DisableTorchFunction():
                    whole = None if outer else self._begin(module, args)
                    number = self._enter(name, module, args)
            local.depth = depth + 1
            try:
                result = original(module, *args, **kwargs)
            except BaseException as error:
                raised: dict[str, Value] = {"raised": type(error).__name__}
                for each in (number, whole):
                    if each is not None:
                        recorder.leave(each, raised)
                raise
            finally:
                local.depth = depth
            if blind:
                recorder.leave(number, {})
            else:
                with torch._C.DisableTorchFunction():
                    self._leave(module, args, kwargs, result, number, whole)
            return result

        return call

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...]) -> int | None:
        """An outermost module is called; the id of the model's call, if it is a model."""
        if not is_model(module):
            return None
        recorder = self._recorder
        self._variables.add_model(module)
        self.followed = weakref.ref(module)
        if torch.is_grad_enabled():
            self._variables.ran_with_gradients(module)
        recorder.begin_training()
        recorder.context.follow(module.training)
        fields: dict[str, Value] = {"class": type(module).__qualname__}
        fields["module.training"] = module.training
        fields |= self._inputs.given(module, args, recorder.step)
        if not module.training and (self._needs is None or self._needs.norms):
            fields[UNTRACKED] = untracked_norms(module)
        return recorder.enter(FORWARD, fields, digest_of_all(args) if self._needs is None else "")

    def _enter(self, name: str, module: torch.nn.Module, args: tuple[Any, ...]) -> int:
        recorder, needs = self._recorder, self._needs
        if needs is not None and name not in needs.whole:
            recorder.touch(name)
            return recorder.enter_blind(name)
        parts = parts_of_module(module) if module._modules else None
        summarise = summarise_module if self._shared is None else self._shared.module
        return recorder.enter(name, summarise(module.training, parts, args))

    def _leave(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        number: int,
        whole: int | None,
    ) -> None:
        recorder, shared = self._recorder, self._shared
        # In a watched run, equal results have one object, which nobody changes.
        fields = summarise_result(result) if shared is None else shared.result(result)
        if kwargs:
            given = summarise_call((), kwargs) if shared is None else shared.call((), kwargs)
            fields = given | fields
        if (finite := is_finite_number(result)) is not None:
            fields = {**fields, "result.finite": finite}
        recorder.leave(number, fields)
        if whole is not None:
            self._inputs.gave(module, result)
            both = kwargs and self._needs is None
            recorder.leave(whole, fields, digest_of_all((args, kwargs)) if both else "")


def _give_back(replacement: object, original: object) -> None:
    """Give the original to parts of PyTorch that were imported meanwhile and kept the replacement.

    An optimizer is what first imports the compiler, which asks later whether the calls are
    PyTorch's own.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch."):
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is replacement:
                setattr(module, attribute, original)
