"""A migrated plan as a model to compare: its two backends, and the cases that it was moved with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from tapml.backends.runner import FEATURES
from tapml.comparing.data import Data, make_data
from tapml.comparing.texts import as_written, padded
from tapml.models.stored import StoredDecoder, StoredEncoder, StoredEncoderDecoder, StoredModule
from tapml.session.folder import check_finished, is_session
from tapml.session.kept_model import open_kept
from tapml.workloads.module import Input as ModuleCase
from tapml_targets.errors import InputError

BACKENDS: Final = ("session:source", "session:target")


def is_plan(model: Path) -> bool:
    """Whether a folder is a session's."""
    return model.is_dir() and is_session(model)


def cases_of(session: Path) -> Data:
    """What a finished session was moved with: its prompts with the tokens that followed, or inputs.

    Sources and sentences are padded at their end.

    Raises
    ------
    InputError
        If the session has not finished, or its model is of a kind whose plan is not compared.
    """
    check_finished(session)
    kept = open_kept(session)
    if kept is None:
        raise InputError(f"the stored model of {session.name} is gone: run the session again")
    cases = kept.trace.cases
    if isinstance(kept.model, StoredDecoder):
        rows = [[*each.case.token_ids, *each.choices] for each in cases]
        return Data(padded([each for each in rows if len(each) > 1]))
    if isinstance(kept.model, StoredEncoder):
        return Data(padded([each for one in cases for each in one.case.sentences]))
    if isinstance(kept.model, StoredEncoderDecoder):
        written = padded([[*kept.model.start_tokens, *each.choices[:-1]] for each in cases])
        source = (
            padded([each.case.token_ids for each in cases])
            if kept.model.features is None
            else {FEATURES: np.stack([each.case.plain for each in cases])}
        )
        return Data(source | as_written(written))
    if not isinstance(kept.model, StoredModule):
        raise InputError(f"the plan of {kept.model.name} is compared by `tapml offload` alone")
    given = [each.case for each in cases if isinstance(each.case, ModuleCase)]
    names = [each.name for each in kept.model.inputs]
    arrays = [[tensor.array for tensor in each.tensors] for each in given]
    return make_data(
        {name: np.concatenate([row[at] for row in arrays]) for at, name in enumerate(names)}
    )
