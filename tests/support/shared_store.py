"""A store in memory that several engines of one test open, as replicas share theirs."""

from collections.abc import Callable

from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.layout import BlockLayout
from stratakv.storage.stores.faulty import FaultRates, FaultyBackend
from stratakv.storage.stores.memory import MemoryBackend
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component


def shared_store(capacity: int = 1 << 26, faults: FaultRates | None = None) -> Callable[[BlockLayout], Store]:
    """Opens one and the same store for every engine, with faults between it and all of them."""
    memory = MemoryBackend(capacity)

    def open_it(layout: BlockLayout) -> Store:
        backend = FaultyBackend(memory, faults, seed=1) if faults else memory
        shapes = (describe_shapes(Component.FULL, layout.shapes),)
        identity = Identity(
            model_config="",
            weights="",
            kv_dtype="",
            page_size=0,
            component_shapes=shapes,
            alignment=layout.alignment,
        )
        return Store(backend, identity)

    return open_it
