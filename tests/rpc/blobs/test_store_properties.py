"""Whatever clients do, in whatever order: budgets hold, scopes do not leak, attached blobs stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from tapml_rpc.blobs.index import Arrival
from tapml_rpc.blobs.memory import PAGE_BYTES
from tapml_rpc.blobs.store import BlobStore
from tapml_targets.errors import InputError
from tests.rpc.blobs.contents import content, digest_of, put, settle

MEMORY, DISK = 8 * PAGE_BYTES, 12 * PAGE_BYTES
IDENTITIES = st.sampled_from(["ann", "bob", "cy"])
CONTENTS = [content(seed, size * PAGE_BYTES // 2) for seed, size in enumerate([1, 2, 3, 5, 8, 13])]
DATA = st.sampled_from(CONTENTS)


class BlobStoreMachine(RuleBasedStateMachine):
    """Clients of a store, some of whom do not finish what they begin; restarts in between."""

    arriving: Bundle[tuple[str, bytes, Arrival]] = Bundle("arriving")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.sent: set[tuple[str, str]] = set()
        self.attached: dict[tuple[int, str], tuple[int, bytes]] = {}
        self.sessions = 0

    @initialize(on_disk=st.booleans())
    def start(self, on_disk: bool) -> None:
        self.disk = DISK if on_disk else 0
        self.open()

    def open(self) -> None:
        self.store = BlobStore(MEMORY, self.disk, Path(self.folder.name) / "blobs")

    @rule(identity=IDENTITIES, data=DATA)
    def put(self, identity: str, data: bytes) -> None:
        try:
            put(self.store, identity, data)
        except InputError:
            return
        self.sent.add((identity, digest_of(data)))
        assert self.store.holds(identity, digest_of(data))

    @rule(target=arriving, identity=IDENTITIES, data=DATA)
    def begin(self, identity: str, data: bytes) -> Any:
        try:
            return identity, data, self.store.begin(identity, digest_of(data), len(data))
        except InputError:
            return multiple()

    @rule(upload=consumes(arriving))
    def finish(self, upload: tuple[str, bytes, Arrival]) -> None:
        identity, data, arrival = upload
        if arrival in self.store._index.arriving:
            assert arrival.take(0, memoryview(data))
            self.store.keep(arrival)
            self.sent.add((identity, digest_of(data)))

    @rule(upload=consumes(arriving))
    def give_up(self, upload: tuple[str, bytes, Arrival]) -> None:
        self.store.abandon(upload[2])

    @rule(identity=IDENTITIES, data=DATA)
    def attach(self, identity: str, data: bytes) -> None:
        digest = digest_of(data)
        held = self.store.holds(identity, digest)
        self.sessions += 1
        try:
            attachment = self.store.attach(self.sessions, identity, digest)
        except InputError:
            return
        assert (attachment is not None) == held
        if attachment is not None:
            self.attached[self.sessions, digest] = attachment.fd, data

    @rule(which=st.integers(0, 7))
    def detach(self, which: int) -> None:
        if self.attached:
            session, digest = key = list(self.attached)[which % len(self.attached)]
            self.store.detach(session, digest)
            del self.attached[key]

    @rule()
    def copies_reach_the_disk(self) -> None:
        settle(self.store)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.attached.clear()
        self.open()

    @invariant()
    def nobody_sees_what_they_have_not_sent(self) -> None:
        if hasattr(self, "store"):
            for identity in ("ann", "bob", "cy"):
                for data in CONTENTS:
                    if (identity, digest_of(data)) not in self.sent:
                        blob = self.store._index.blobs.get(digest_of(data))
                        assert blob is None or identity not in blob.owners

    @invariant()
    def what_is_attached_stays_as_it_is(self) -> None:
        for (_, digest), (descriptor, data) in self.attached.items():
            assert digest in self.store._index.blobs
            assert os.pread(descriptor, len(data), 0) == data

    @invariant()
    def budgets_hold(self) -> None:
        if hasattr(self, "store"):
            found = self.store.statistics()
            assert 0 <= found.memory_bytes <= MEMORY
            assert 0 <= found.disk_bytes <= self.disk
            assert found.attached_bytes + found.arriving_bytes <= found.memory_bytes

    def teardown(self) -> None:
        if hasattr(self, "store"):
            settle(self.store)
            found = self.store.statistics()
            on_disk = [
                path.stat().st_size
                for path in (Path(self.folder.name)).glob("blobs/*")
                if len(path.name) == 64
            ]
            assert sum(on_disk) == found.disk_bytes
            self.store.close()
        self.folder.cleanup()


TestBlobStore = BlobStoreMachine.TestCase
TestBlobStore.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
