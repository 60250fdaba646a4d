"""What a page takes in a store, and whether it fits."""

from collections.abc import Sequence
from typing import NamedTuple

from stratakv.storage.layout import BlockLayout
from stratakv.storage.settings import format_size
from stratakv.storage.stores.errors import StoreTooSmall

_MIB = 2**20


def page_bytes(layouts: Sequence[BlockLayout]) -> int:
    """Bytes of one page with all components and, whichever of them this rank has, all groups."""
    return sum(
        layout.block_bytes * layout.group.of for layout in {each.component: each for each in layouts}.values()
    )


class Watermarks(NamedTuple):
    """Bytes. A store that holds more than `high` is collected down to `low`, so that it need not be at every page."""

    high: int
    low: int


def watermarks(limit: int, page: int) -> Watermarks:
    """95 % and 85 % of `limit`, as far as that leaves room for whole pages of `page` bytes."""
    return Watermarks(limit - limit // 20 // page * page, limit - limit * 3 // 20 // page * page)


def check_capacity(capacity: int, layouts: Sequence[BlockLayout]) -> None:
    """StoreTooSmall unless `capacity` bytes hold a page."""
    if capacity < page_bytes(layouts):
        raise StoreTooSmall(
            f"store.capacity is {format_size(capacity)}, but one page takes {page_bytes(layouts)} bytes; set it to "
            f"{-(-page_bytes(layouts) // _MIB)}MiB or more (many times that to be of use)"
        )
