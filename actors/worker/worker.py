"""A worker: one rank of a replica with its model, its pools, and on rank 0 the head and its endpoint.

This is what the Ray shell drives. Everything that can be wrong with settings or the model comes out of `start` as a
`StartError` that names the setting and the remedy, and then nothing is left open.
"""

import logging
import os
from pathlib import Path

from stratakv.actors.worker.config import Heartbeat, StartError, WorkerConfig
from stratakv.actors.worker.endpoint import HeadEndpoint
from stratakv.actors.worker.engine import Engine
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.model import Model, ModelError
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.weights import weights_digest
from stratakv.cluster.agreement import LocalGroup
from stratakv.cluster.messages import Endpoint, ModelCard
from stratakv.kernels.pool import DevicePool
from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.layout import BlockLayout, MemoryTooSmall, device_slots_for, host_slots_for
from stratakv.storage.pools import HostBlocks
from stratakv.storage.registry import UnknownName
from stratakv.storage.settings import format_size
from stratakv.storage.slab import HostSlab, SlabError
from stratakv.storage.tiers import Component

_log = logging.getLogger(__name__)


class Worker:
    """Fulfils `RankWorker` with a real model."""

    def __init__(self, config: WorkerConfig):
        self._config = config
        self._slab: HostSlab | None = None
        self._endpoint: HeadEndpoint | None = None
        self._engine: Engine | None = None

    def start(self) -> Endpoint:
        """Load the model, open pools and slab, bind the socket, start the engine. StartError if hopeless."""
        try:
            return self._start()
        except (ModelError, MemoryTooSmall, SlabError, UnknownName) as error:
            self.stop()
            raise StartError(str(error)) from error
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Endpoint:
        config = self._config
        model = Model.load(config.model)
        layout = BlockLayout(model.shapes, config.cache.page_size, model.dtype.itemsize)
        # One page for each running request, and one to spare: with fewer they could never all make a step.
        minimum = config.scheduler.max_running + 1
        device_slots = device_slots_for(config.cache.device_memory, layout, minimum)
        host_slots = host_slots_for(config.cache.host_memory, layout, minimum=1)
        pool = DevicePool(model.shapes, device_slots, config.cache.page_size, model.dtype, model.device)
        identity = self._identity(model, layout)
        card = self._card(model, device_slots, identity)
        rank = Rank(model, pool, self._host(host_slots, layout), LocalGroup(), bytes.fromhex(identity.digest()))
        head = Head(
            config.cache, config.scheduler, device_slots=device_slots, host_slots=host_slots,
            eos=model.eos_token_ids, limit=card.max_total_tokens,
        )  # fmt: skip
        self._engine = Engine(head, rank, config.cache.page_size, self._emit)
        self._endpoint = HeadEndpoint(
            config.wire, config.heartbeat, self._engine,
            allowed=config.gateway_key, generation=config.generation, card=card, load=self._engine.load,
        )  # fmt: skip
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
            component_shapes=(describe_shapes(Component.FULL, model.shapes),),
            alignment=layout.alignment,
        )

    def _card(self, model: Model, device_slots: int, identity: Identity) -> ModelCard:
        config = self._config
        context = min(model.context_length, config.model.context_length or model.context_length)
        return ModelCard(
            name=model.name,
            path=str(model.directory),
            vocab_size=model.vocab_size,
            max_total_tokens=min(context, device_slots * config.cache.page_size),
            context_length=context,
            page_size=config.cache.page_size,
            eos_token_ids=tuple(model.eos_token_ids),
            identity=identity.digest(),
        )

    def _host(self, slots: int, layout: BlockLayout) -> HostBlocks | None:
        if not slots:
            return None
        config = self._config
        self._slab = HostSlab.open(
            config.cache.host_directory, config.cluster_id, config.replica, config.rank, slots * layout.block_bytes
        )
        return HostBlocks(self._slab.buffer, slots, layout)

    def _emit(self, step: int, emissions: list) -> None:  # type: ignore[type-arg]
        assert self._endpoint is not None
        self._endpoint.deliver(step, emissions)

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

    def drain(self, deadline: float) -> None:
        """Refuse new requests and wait up to `deadline` seconds for the others."""
        if self._engine is not None:
            self._engine.drain(deadline)

    def stop(self) -> None:
        """End the engine, close the socket, remove the slab. May be called at any time, more than once."""
        if self._engine is not None:
            self._engine.stop()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._slab is not None:
            self._slab.remove()
        self._engine, self._endpoint, self._slab = None, None, None


def _digest_cache() -> Path:
    """Where digests of weight files are remembered between starts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratakv"
