"""The I/O threads of one rank: they read pages from the store into host blocks, and write host blocks to the store.

Plans start and cut transfers; what a transfer has done it reports into the rank's slot table, and nowhere else.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import TypeVar

from stratakv.actors.worker.host import HostMemory
from stratakv.cluster.agreement import Operation, SlotTable
from stratakv.storage.moves import Area, Part, Read, Write
from stratakv.storage.stores.answers import Get, Put
from stratakv.storage.stores.store import Store

_log = logging.getLogger(__name__)

T = TypeVar("T", Read, Write)

_READ_BATCH = 16  # pages between two looks at whether the prefetch was cut


class Transfers:
    """Reads and writes of one rank between `store` and `host`.

    Writes go through one thread, in order: a page must not reach the store before the one it follows.
    """

    def __init__(self, store: Store, host: HostMemory, table: SlotTable, readers: int):
        self._store = store
        self._host = host
        self._table = table
        self._readers = ThreadPoolExecutor(readers, "store-read")
        self._writer = ThreadPoolExecutor(1, "store-write")

    def read(self, order: Read) -> None:
        """Occupy the prefetch slot and begin to read. Returns at once."""
        self._readers.submit(self._run, self._read, self._table.start(Area.PREFETCH, order.slot), order)

    def write(self, order: Write) -> None:
        """Occupy the write slot and queue the batch. Returns at once."""
        self._writer.submit(self._run, self._write, self._table.start(Area.WRITE, order.slot), order)

    def close(self) -> None:
        """Begin nothing new. Calls that are under way end by themselves, or with the process."""
        self._store.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[Operation, T], None], operation: Operation, order: T) -> None:
        """Whatever happens, the slot is drained: nobody may wait for a thread that has gone."""
        try:
            work(operation, order)
        except Exception:
            _log.exception("a transfer between host memory and the store failed")
        finally:
            operation.end()
            operation.drain()

    def _read(self, operation: Operation, order: Read) -> None:
        """Part after part; a block counts when it is here in every group that this rank holds."""
        landed = 0
        for part in order.parts:
            for start in range(0, len(part.stamps), _READ_BATCH):
                if operation.cut:
                    return
                batch = slice(start, start + _READ_BATCH)
                good = self._read_batch(part, batch)
                landed += good
                operation.advance(landed)
                if good < len(part.stamps[batch]):
                    return

    def _read_batch(self, part: Part, batch: slice) -> int:
        """Read blocks `batch` of `part`; how many are here, from the first on."""
        good = len(part.stamps[batch])
        for blocks in self._host.of(part.component):
            stamps = part.stamps[batch][:good]
            memory = [blocks.host.block(slot) for slot in part.host_slots[batch][:good]]
            got = self._store.get(blocks.layout, stamps, memory)
            good = sum(1 for _ in takewhile(lambda answer: answer.outcome is Get.HIT, got))
            if good < len(got):
                _log.warning(
                    "the store gave %d of %d %s blocks: %s", good, len(got), part.component, got[good]
                )
        return good

    def _write(self, operation: Operation, order: Write) -> None:
        """Part after part; a block counts when it is stored in every group that is this rank's to write."""
        written = 0
        for part in order.parts:
            good = len(part.stamps)
            for blocks in self._host.of(part.component):
                if not blocks.writes:
                    continue
                memory = [blocks.host.block(slot) for slot in part.host_slots[:good]]
                stored = self._store.put(blocks.layout, part.stamps[:good], memory)
                good = sum(1 for _ in takewhile(lambda answer: answer.outcome is not Put.FAILED, stored))
                if good < len(stored):
                    _log.warning("the store took %d of %d blocks: %s", good, len(stored), stored[good])
            written += good
            operation.advance(written)
            if good < len(part.stamps):
                return
