"""Steps of a watched run that make the calls of the step before.

A training loop does the same in most steps. What a watched run records is compared with the rows
of the step before as it comes; as long as it is the same, no row is made. Relations look back at
most one step (:attr:`~tapml.invariants.relation.Relation.batches` names those that look further),
so what was found in the second of three equal steps holds for the third.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tapml.invariants.record import BATCH, CALL, STATE, Assembler, Fields, Record, Row, Window

_Made = tuple[Row, int, int, str, Fields]
_Wanted = tuple[str, str, Fields, Fields, str]
"""Kind, name, context, fields and digest."""


class Repeating:
    """Compares the rows of a step with those of the step before.

    Attributes
    ----------
    times
        How many steps in a row have repeated the one before them.
    follows
        Whether this step has repeated the one before it so far.
    """

    def __init__(self) -> None:
        self.times = 0
        self._rows: list[Row] = []
        # All that is compared of each.
        self._wanted: list[_Wanted] = []
        # Places of states of variables among them, and which of these are equal.
        self._states: list[int] = []
        self._same: list[int] = []
        self._now: list[Row] = []
        self._made: list[_Made] = []
        # States that were all taken, and where.
        self._taken: tuple[list[Fields], int] = [], 0
        self.follows = self._delivers = False

    def takes(
        self,
        kind: str,
        name: str,
        number: int,
        parent: int,
        digest: str,
        context: Fields,
        fields: Fields,
    ) -> bool:
        """Whether what is recorded now is what came at this place in the step before."""
        made = self._made
        place = len(made)
        if not self.follows or place >= len(self._wanted):
            return False
        now, wanted = (kind, name, context, fields, digest), self._wanted[place]
        # One comparison of all, in which objects that are one are equal.
        same = now == wanted or _is_alike(now, wanted)
        if same:
            made.append((self._rows[place], number, parent, digest, fields))
        return same

    def takes_states(
        self,
        names: list[str],
        states: list[Fields],
        digests: list[str],
        parent: int,
        context: Fields,
    ) -> int:
        """How many of the states of variables, from the first on, are what came before.

        A model has many, so this is :meth:`takes` for all of them.
        """
        made = self._made
        first = len(made)
        wanted = self._wanted[first : first + len(names)] if self.follows else []
        if wanted and (wanted[0][2] is not context and wanted[0][2] != context):
            return 0
        shared, taken = wanted[0][2] if wanted else context, len(wanted)
        known, where = self._taken
        for place in range(taken if known is not states or where != first else 0):
            kind, name, its_context, fields, _ = wanted[place]
            same = kind == STATE and name == names[place] and its_context is shared
            if not same or (fields is not states[place] and fields != states[place]):
                taken = place
                break
        now = zip(self._rows[first : first + taken], digests, states, strict=False)
        made += [(row, -1, parent, digest, fields) for row, digest, fields in now]
        if taken == len(names):
            self._taken = states, first
        return taken

    def released(self, step: int) -> Iterator[Row]:
        """The rows of this step so far, which does something else from here on."""
        self.follows = False
        made, self._made = self._made, []
        for row, number, parent, digest, fields in made:
            yield row._replace(
                id=number,
                parent=parent,
                step=step,
                nanoseconds=time.monotonic_ns(),
                digest=digest,
                fields=fields,
            )

    def keep(self, row: Row) -> None:
        """Take a row that was not the same."""
        self._now.append(row)

    def repeated(self) -> bool:
        """Whether all of this step, which ends, was the same as in the step before."""
        if not self.follows or len(self._made) != len(self._rows) or not self._rows:
            return False
        # Tied parameters have equal digests, whatever these are.
        return _pattern([self._made[place][3] for place in self._states]) == self._same

    def begin(self, *, repeated: bool) -> None:
        """The next step begins; what was recorded in this one is what it may repeat."""
        if repeated:
            self.times += 1
        else:
            self.times = 0
            self._taken = [], 0
            self._rows = self._now
            self._wanted = [(r.kind, r.name, r.context, r.fields, r.digest) for r in self._now]
            self._states = [place for place, row in enumerate(self._now) if row.kind == STATE]
            self._same = _pattern([self._now[place].digest for place in self._states])
            self._delivers = any(row.name == BATCH for row in self._now)
        self._now, self._made, self.follows = [], [], True

    def batches(self, step: int) -> Window:
        """The batches of this step alone, which repeated the one before in all else."""
        found: list[Record] = []
        for row, number, parent, digest, fields in self._made if self._delivers else ():
            if row.name != BATCH:
                continue
            if row.kind == CALL:
                where = (number, parent, step, row.rank, row.source)
                found.append(Record(CALL, BATCH, *where, digest, row.context, fields))
            elif found:
                found[-1].fields = {**found[-1].fields, **fields}
                found[-1].digest, found[-1].done = digest, True
        return Window(step, (tuple(found),))

    def before(self, step: int) -> Window:
        """The step before, as the rules are to remember it when this one is another."""
        assembler = Assembler()
        for row in self._rows:
            assembler.feed(row._replace(step=step))
        return Window(step, (assembler.close()[1],))


def _is_alike(now: _Wanted, wanted: _Wanted) -> bool:
    """Whether only that differs which differs from step to step.

    A variable has another digest, and a batch another place in its epoch.
    """
    kind, name, *_ = now
    if name == BATCH:
        return now[:3] == wanted[:3]
    return kind == STATE and now[:4] == wanted[:4]


def _pattern(digests: list[str]) -> list[int]:
    """For each digest the place where it came first."""
    places: dict[str, int] = {}
    return [places.setdefault(digest, place) for place, digest in enumerate(digests)]
