"""The tree against an oracle too simple to be wrong: a list of histories and where each of their pages is.

Both are driven by the same operations through the hierarchy with every copy agreed at once; the oracle then says what
must be found, page by page, and which page may leave next under least recently used.
"""

from dataclasses import dataclass, field

from hierarchy_fakes import Request, Shape, history, make, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.storage.hierarchy import Asked
from stratakv.storage.tiers import Tier


@dataclass
class Oracle:
    """Pages by key, with the time of their last use; a use of a history is a use of each of its pages. Who leaves is
    the page used longest ago, of those used at the same time the deepest: the tail of a history drains first."""

    device_room: int
    host_room: int
    device: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    host: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    now: int = 0

    def found(self, keys: list[bytes]) -> tuple[int, int]:
        device = next((n for n, key in enumerate(keys) if key not in self.device), len(keys))
        held = next(
            (n for n, key in enumerate(keys) if key not in self.device.keys() | self.host.keys()), len(keys)
        )
        return device, held - device

    def use(self, keys: list[bytes]) -> None:
        """A request of this history runs and ends: all of it is on the device, and copied to host."""
        self.now += 1
        for depth, key in enumerate(keys, 1):
            self.device[key] = (self.now, -depth)
            if self.host_room:
                self.host[key] = (self.now, -depth)
        while len(self.device) > self.device_room:
            del self.device[min(self.device, key=self.device.__getitem__)]
        while len(self.host) > self.host_room:
            # What is on the device too keeps its copy; of the rest the coldest goes.
            del self.host[min(self.host.keys() - self.device.keys(), key=self.host.__getitem__)]


HISTORIES = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=14)


@given(asked=HISTORIES, device=st.integers(5, 9), host=st.just(0) | st.integers(10, 16))
@settings(max_examples=300, deadline=None)
def test_what_is_found_is_what_the_oracle_finds(asked: list[str], device: int, host: int) -> None:
    hierarchy, executor = make(Shape(device=device, host=host))
    oracle = Oracle(device, host)
    for symbols in asked:
        keys = history(symbols)
        expected = oracle.found(keys)
        admission = hierarchy.admit(keys, len(keys), Asked())
        assert admission is not None
        assert (admission.device_pages, admission.host_pages) == expected
        request = Request(keys, admission.lease)
        assert request.forward(hierarchy, executor, len(keys))
        settle(hierarchy, executor)
        hierarchy.release(request.lease)
        settle(hierarchy, executor)
        oracle.use(keys)
        assert resident(hierarchy, Tier.DEVICE) == set(oracle.device)
        assert resident(hierarchy, Tier.HOST) == set(oracle.host)


def resident(hierarchy, tier: Tier) -> set[bytes]:
    tree = hierarchy.tree
    pages = (page for page in range(1, len(tree.columns.key)) if tree.columns.key[page])
    return {tree.columns.key[page] for page in pages if tree.slot(page, tier) is not None}
