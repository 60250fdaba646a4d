"""A worker: one rank of a replica with its model, its pools, and on rank 0 the head and its endpoint.

This is what the Ray shell drives. Everything that can be wrong with settings or the model comes out of `start` as a
`StartError` that names the setting and the remedy, and then nothing is left open.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from stratakv.actors.worker.config import Heartbeat, StartError, WorkerConfig
from stratakv.actors.worker.endpoint import HeadEndpoint
from stratakv.actors.worker.engine import Engine
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.lookup import StoreLookup
from stratakv.actors.worker.model import Model, ModelError
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.seeker import StoreSeeker
from stratakv.actors.worker.transfers import Transfers
from stratakv.actors.worker.weights import weights_digest
from stratakv.cluster.agreement import LocalGroup, SlotTable
from stratakv.cluster.messages import Endpoint, ModelCard
from stratakv.kernels.memory import DeviceMemory
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.layout import BlockLayout, MemoryTooSmall, device_slots_for, host_slots_for
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES
from stratakv.storage.pools import HostBlocks
from stratakv.storage.registry import UnknownName
from stratakv.storage.settings import format_size
from stratakv.storage.slab import HostSlab, SlabError
from stratakv.storage.stores.errors import StoreError
from stratakv.storage.stores.opening import open_store
from stratakv.storage.tiers import Component

_log = logging.getLogger(__name__)


class Worker:
    """Fulfils `RankWorker` with a real model."""

    def __init__(self, config: WorkerConfig):
        self._config = config
        self._slab: HostSlab | None = None
        self._endpoint: HeadEndpoint | None = None
        self._engine: Engine | None = None
        self._transfers: Transfers | None = None
        self._lookup: StoreLookup | None = None

    def start(self) -> Endpoint:
        """Load the model, open pools, slab and store, bind the socket, start the engine. StartError if hopeless."""
        try:
            return self._start()
        except (ModelError, MemoryTooSmall, SlabError, StoreError, UnknownName) as error:
            self.stop()
            raise StartError(str(error)) from error
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Endpoint:
        config = self._config
        model = Model.load(config.model)
        layout = BlockLayout(model.shapes.full, config.cache.page_size, model.dtype.itemsize)
        # One page for each running request, and one to spare: with fewer they could never all make a step.
        minimum = config.scheduler.max_running + 1
        device_slots = device_slots_for(config.cache.device_memory, layout, minimum)
        host_slots = host_slots_for(config.cache.host_memory, layout, minimum=1)
        memory = DeviceMemory.build(
            model.shapes, full=device_slots, page_size=config.cache.page_size, dtype=model.dtype, device=model.device
        )  # fmt: skip
        host = self._open_host(host_slots, layout)
        identity = self._identity(model, layout)
        card = self._card(model, device_slots, identity)
        table = SlotTable()
        self._engine = Engine(config.cache.page_size)
        self._open_store(identity, layout, host, table)
        rank = Rank(
            model, memory, host, LocalGroup(), bytes.fromhex(identity.digest()), table, self._transfers
        )  # fmt: skip
        head = Head(
            config.cache, config.scheduler, device_slots=device_slots, host_slots=host_slots,
            eos=model.eos_token_ids, limit=card.max_total_tokens, seeker_of=self._seeker_of(),
        )  # fmt: skip
        self._endpoint = HeadEndpoint(
            config.wire, config.heartbeat, self._engine,
            allowed=config.gateway_key, generation=config.generation, card=card, load=self._engine.load,
        )  # fmt: skip
        self._engine.connect(head, rank, self._endpoint)
        self._endpoint.start()
        self._engine.start()
        _log.info(
            "replica %d serves %s: %d device pages (%s) and %d host pages (%s) of %d tokens",
            config.replica, card.name, device_slots, format_size(device_slots * layout.payload_bytes),
            host_slots, format_size(host_slots * layout.block_bytes), config.cache.page_size,
        )  # fmt: skip
        return Endpoint(
            replica=config.replica, generation=config.generation, address=self._endpoint.address,
            public_key=self._endpoint.public_key, card=card,
        )  # fmt: skip

    def _identity(self, model: Model, layout: BlockLayout) -> Identity:
        return Identity(
            model_config=model.config_digest,
            weights=weights_digest(model.directory, _digest_cache()),
            kv_dtype=str(model.dtype).removeprefix("torch."),
            page_size=layout.page_size,
            component_shapes=(describe_shapes(Component.FULL, model.shapes.full),),
            alignment=layout.alignment,
        )

    def _card(self, model: Model, device_slots: int, identity: Identity) -> ModelCard:
        config = self._config
        return ModelCard(
            name=model.name,
            path=str(model.directory),
            vocab_size=model.vocab_size,
            max_total_tokens=min(model.context_length, device_slots * config.cache.page_size),
            context_length=model.context_length,
            page_size=config.cache.page_size,
            eos_token_ids=tuple(model.eos_token_ids),
            identity=identity.digest(),
        )

    def _open_host(self, slots: int, layout: BlockLayout) -> HostBlocks | None:
        if not slots:
            return None
        config = self._config
        self._slab = HostSlab.open(
            config.cache.host_directory,
            config.cluster_id,
            config.replica,
            config.rank,
            slots * layout.block_bytes,
        )
        return HostBlocks(self._slab.buffer, slots, layout)

    def _open_store(
        self, identity: Identity, layout: BlockLayout, host: HostBlocks | None, table: SlotTable
    ) -> None:
        """Open the store and prove that what this rank writes there it can read back."""
        settings = self._config.store
        if settings.url is None:
            return
        if host is None:
            raise StartError(
                "store.url is set and cache.host_memory is 0: pages go to the store through host memory; give it some, "
                "or turn the store off with --store none"
            )
        store = open_store(settings, identity, [layout])
        self._transfers = Transfers(store, host, table, settings.readers)
        self._lookup = StoreLookup(store)
        nonce = secrets.token_hex(16)
        store.write_nonce(nonce)
        store.expect_nonce(nonce)
        for remark in store.remarks():
            _log.warning("%s", remark)

    def _seeker_of(self) -> Callable[[Hierarchy], StoreSeeker] | None:
        lookup, engine, config = self._lookup, self._engine, self._config
        if lookup is None or engine is None:
            return None
        policy = PREFETCH_POLICIES.get(config.store.prefetch_policy)()
        return lambda hierarchy: StoreSeeker(
            config.store, policy, hierarchy, lookup, config.cache.page_size, engine.found, time.monotonic
        )

    def heartbeat(self) -> Heartbeat:
        """The engine's sign of life. Raises when the engine or its endpoint has failed."""
        assert self._engine is not None and self._endpoint is not None
        if not self._endpoint.alive:
            raise RuntimeError("the head's endpoint thread ended; see the worker's log")
        return self._engine.heartbeat()

    def idle_check(self) -> list[str]:
        """What is wrong with the slots and holds of an idle rank; empty when all is well."""
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
        """End the engine, close the socket and the store, remove the slab. May be called at any time, more than
        once."""
        if self._engine is not None:
            self._engine.stop()
        if self._lookup is not None:
            self._lookup.close()
        if self._transfers is not None:
            self._transfers.close()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._slab is not None:
            self._slab.remove()
        self._engine, self._endpoint, self._slab, self._transfers, self._lookup = None, None, None, None, None


def _digest_cache() -> Path:
    """Where digests of weight files are remembered between starts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratakv"
