"""A worker: one rank of a replica with its share of the model, its pools, and on rank 0 the head and its endpoint.

This is what the Ray shell drives. Everything that can be wrong with settings or the model comes out of `start` as a
`StartError` that names the setting and the remedy, and then nothing is left open.
"""

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from stratakv.actors.worker.budget import Budget, SettingsError, host_specs, make_budget, shelves
from stratakv.actors.worker.config import Heartbeat, StartError, WorkerConfig
from stratakv.actors.worker.crew import Crew, gather
from stratakv.actors.worker.endpoint import HeadEndpoint
from stratakv.actors.worker.engine import Engine
from stratakv.actors.worker.explainer import Explainer
from stratakv.actors.worker.groups import stored_groups
from stratakv.actors.worker.head import Head, Pools
from stratakv.actors.worker.host import BlockSpec, HostMemory, bytes_of
from stratakv.actors.worker.lockstep import Follower
from stratakv.actors.worker.lookup import StoreLookup
from stratakv.actors.worker.model import Model, ModelError
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.seeker import StoreSeeker
from stratakv.actors.worker.split import HeadSplit, describe_components
from stratakv.actors.worker.team import Executes, agree
from stratakv.actors.worker.transfers import Transfers
from stratakv.actors.worker.weights import weights_digest
from stratakv.cluster.agreement import SlotTable
from stratakv.cluster.messages import Endpoint, ModelCard
from stratakv.cluster.rendezvous import Meeting
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.identity import Identity
from stratakv.storage.layout import MemoryTooSmall
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES
from stratakv.storage.registry import UnknownName
from stratakv.storage.slab import HostSlab, SlabError
from stratakv.storage.stores.answers import Shelf
from stratakv.storage.stores.errors import StoreError
from stratakv.storage.stores.opening import open_store
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component

_log = logging.getLogger(__name__)

_SWITCH = 0.0002
"""Seconds that a thread may keep the interpreter from another. The engine gives it up in every call into torch, and
would wait for up to Python's 5 ms each time that a thread of the store works: 1.6 % of the throughput without reuse."""


class Worker:
    """Fulfils `RankWorker` with a real model: the whole one that is given, or else what `config` names."""

    def __init__(self, config: WorkerConfig, model: Model | None = None):
        self._config = config
        self._model = model
        self._slab: HostSlab | None = None
        self._endpoint: HeadEndpoint | None = None
        self._engine: Engine | None = None
        self._crew: Crew | None = None
        self._follower: Follower | None = None
        self._transfers: Transfers | None = None
        self._lookup: StoreLookup | None = None

    def start(self, meeting: Meeting) -> Endpoint | None:
        """Load the model, open pools, slab and store, bind the socket, start the engine. StartError if hopeless. Sets
        how the process switches between its threads.

        The endpoint of rank 0, once all ranks are ready; None on the others.
        """
        sys.setswitchinterval(_SWITCH)
        try:
            return self._start(meeting)
        except (ModelError, MemoryTooSmall, SettingsError, SlabError, StoreError, UnknownName) as error:
            self.stop()
            raise StartError(str(error)) from error
        except BaseException:
            self.stop()
            raise

    def _start(self, meeting: Meeting) -> Endpoint | None:
        config = self._config
        self._crew = crew = gather(config, meeting)
        model = self._model or crew.load(config.model)
        split = crew.split(model.directory)
        groups = stored_groups(split, config.rank, config.store.head_groups, model.shapes.latent)
        scheduler = config.scheduler
        budget = make_budget(
            config.cache, model.shapes, model.dtype.itemsize, groups.held, scheduler.max_running, scheduler.token_budget
        ).with_slots(partial(agree, crew.team.group))  # fmt: skip
        memory = budget.device_memory(model.shapes, model.dtype, model.device)
        host = self._open_host(host_specs(budget, memory, groups.held))
        identity = self._identity(model, split, budget)
        self._table = table = SlotTable()
        self._open_store(identity, shelves(budget, groups.count), host, table)
        rank = Rank(
            model, memory, host, crew.team.group, bytes.fromhex(identity.digest()), table, self._transfers
        )  # fmt: skip
        if config.rank > 0:
            self._follower = crew.follow(rank)
            self._follower.start()
            return None
        return self._lead(crew.lead(rank), self._card(model, budget, identity), budget)

    def _lead(self, rank: Executes, card: ModelCard, budget: Budget) -> Endpoint:
        """Start the head and its endpoint. Rank 0 only."""
        config = self._config
        self._engine = Engine(config.cache.page_size)
        pools = Pools(budget.device.full, budget.host.full, budget.side_pools())
        head = Head(
            config.cache, config.scheduler, pools,
            eos=card.eos_token_ids, limit=card.max_total_tokens, seeker_of=self._seeker_of(),
        )  # fmt: skip
        threshold = -(-config.store.prefetch_threshold // config.cache.page_size)
        self._endpoint = HeadEndpoint(
            config.wire, config.heartbeat, self._engine,
            allowed=config.gateway_key, generation=config.generation, card=card, load=self._engine.load,
            counts=self._engine.counts, explain=Explainer(self._engine.call, head.hierarchy, self._lookup, threshold),
        )  # fmt: skip
        self._engine.connect(head, rank, self._endpoint)
        self._endpoint.start()
        self._engine.start()
        _log.info(
            "replica %d (%d ranks) serves %s; each has %s", config.replica, config.ranks, card.name, budget
        )
        return Endpoint(
            replica=config.replica, generation=config.generation, address=self._endpoint.address,
            public_key=self._endpoint.public_key, card=card,
        )  # fmt: skip

    def _identity(self, model: Model, split: HeadSplit, budget: Budget) -> Identity:
        assert self._crew is not None
        return Identity(
            model_config=model.config_digest,
            # The head alone reads all of the weights for it.
            weights=self._crew.team.from_head(
                "digest of the weights", lambda: weights_digest(model.directory, _digest_cache())
            ),
            kv_dtype=str(model.dtype).removeprefix("torch."),
            page_size=self._config.cache.page_size,
            component_shapes=describe_components(model.shapes, split),
            alignment=budget.layouts[Component.FULL][0].alignment,
        )

    def _card(self, model: Model, budget: Budget, identity: Identity) -> ModelCard:
        config = self._config
        return ModelCard(
            name=model.name,
            path=str(model.directory),
            vocab_size=model.vocab_size,
            max_total_tokens=min(model.context_length, budget.device.full * config.cache.page_size),
            context_length=model.context_length,
            page_size=config.cache.page_size,
            eos_token_ids=tuple(model.eos_token_ids),
            identity=identity.digest(),
            rules=budget.rules(),
        )

    def _open_host(self, specs: Mapping[Component, Sequence[BlockSpec]]) -> HostMemory | None:
        if not self._config.cache.host_memory:
            return None
        config = self._config
        self._slab = HostSlab.open(
            config.cache.host_directory, config.cluster_id, config.replica, config.rank, bytes_of(specs.values())
        )  # fmt: skip
        return HostMemory(self._slab.buffer, specs)

    def _open_store(
        self,
        identity: Identity,
        shelves: Mapping[Component, Sequence[Shelf]],
        host: HostMemory | None,
        table: SlotTable,
    ) -> None:
        """Open the store and prove that what the head writes there this rank can read back."""
        settings = self._config.store
        if settings.url is None:
            return
        if host is None:
            raise StartError(
                "store.url is set and cache.host_memory is 0: pages go to the store through host memory; give it some, "
                "or turn the store off with --store none"
            )
        store = open_store(settings, identity, host.layouts())
        self._transfers = Transfers(store, host, table, settings.readers)
        self._lookup = StoreLookup(store, shelves)
        assert self._crew is not None
        store.expect_nonce(self._crew.team.from_head("nonce in the store", lambda: _leave_nonce(store)))
        for remark in store.remarks():
            _log.warning("%s", remark)

    def _seeker_of(self) -> Callable[[Hierarchy], StoreSeeker] | None:
        lookup, engine, config = self._lookup, self._engine, self._config
        if lookup is None or engine is None:
            return None
        policy = PREFETCH_POLICIES.get(config.store.prefetch_policy)(config.store)
        return lambda hierarchy: StoreSeeker(
            config.store, policy, hierarchy, lookup, config.cache.page_size, engine.found, time.monotonic
        )

    def heartbeat(self) -> Heartbeat:
        """The sign of life of what carries out plans. Raises when it or the head's endpoint has failed."""
        if self._follower is not None:
            return self._follower.heartbeat()
        assert self._engine is not None and self._endpoint is not None
        if not self._endpoint.alive:
            raise RuntimeError("the head's endpoint thread ended; see the worker's log")
        return self._engine.heartbeat()

    def idle_check(self) -> list[str]:
        """What is wrong with the slots and holds of an idle rank; empty when all is well."""
        if self._follower is not None:
            return self._table.occupied()
        assert self._engine is not None
        return self._engine.idle_check()

    def wait_for(self, id: str, deadline: float) -> None:
        """See RankWorker."""
        if self._endpoint is not None:
            self._endpoint.wait_for(id, deadline)

    def drain(self, deadline: float) -> None:
        """Refuse new requests and wait up to `deadline` seconds for the others."""
        if self._engine is not None:
            self._engine.drain(deadline)

    def stop(self) -> None:
        """End the engine, close the sockets and the store, remove the slab. May be called at any time, more than
        once."""
        if self._engine is not None:
            self._engine.stop()
        if self._follower is not None:
            self._follower.stop()
        if self._crew is not None:
            self._crew.close()
        if self._lookup is not None:
            self._lookup.close()
        if self._transfers is not None:
            self._transfers.close()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._slab is not None:
            self._slab.remove()
        self._engine, self._endpoint, self._slab, self._transfers, self._lookup = None, None, None, None, None
        self._crew, self._follower = None, None


def _leave_nonce(store: Store) -> str:
    nonce = secrets.token_hex(16)
    store.write_nonce(nonce)
    return nonce


def _digest_cache() -> Path:
    """Where digests of weight files are remembered between starts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratakv"
