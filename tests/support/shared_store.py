"""A store in memory that several engines of one test open, as replicas share theirs."""

from collections.abc import Callable, Sequence

from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.layout import BlockLayout
from stratakv.storage.stores.faulty import FaultRates, FaultyBackend
from stratakv.storage.stores.memory import MemoryBackend
from stratakv.storage.stores.store import Store


def shared_store(
    capacity: int = 1 << 26, faults: FaultRates | None = None, model: tuple[str, ...] | None = None
) -> Callable[[Sequence[BlockLayout]], Store]:
    """Opens one and the same store for every engine, with faults between it and all of them.

    They share pages if their blocks are alike, or whatever those are if `model` says what the whole model's are."""
    memory = MemoryBackend(capacity)

    def open_it(layouts: Sequence[BlockLayout]) -> Store:
        backend = FaultyBackend(memory, faults, seed=1) if faults else memory
        shapes = model or tuple(describe_shapes(layout.component, layout.shapes) for layout in layouts)
        identity = Identity(
            model_config="",
            weights="",
            kv_dtype="",
            page_size=0,
            component_shapes=shapes,
            alignment=layouts[0].alignment,
        )
        return Store(backend, identity)

    return open_it
