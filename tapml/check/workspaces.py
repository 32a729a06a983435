"""A Library whose operator is given its workspaces by the caller."""

from __future__ import annotations

from dataclasses import replace

from tapml_targets.library import Library, Parameter


def with_given_workspaces(library: Library, operator: str) -> Library:
    """`library` with this operator alone, its workspaces being parameters after its own.

    A server keeps workspaces from call to call and lets them grow. What reads one that is not
    written, or reads past its end, is seen where it is new and of its exact size.
    """
    program = library.operators[operator]
    workspaces = tuple(
        Parameter(workspace.name, (workspace.nbytes,), "uint8", "output")
        for workspace in program.workspaces
    )
    given = replace(program, parameters=(*program.parameters, *workspaces), workspaces=())
    return replace(library, operators={operator: given}, entries={})
