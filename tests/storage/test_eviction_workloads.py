"""Eviction policies on the real tree, under workloads that tell them apart. Hits are counted, not time."""

import random

from stratakv.storage.columns import ROOT
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import HoldKind, Tree

CAPACITY = 256


class Device:
    """A device of `CAPACITY` pages and nothing else, driven as the hierarchy drives it. `hits` counts pages."""

    def __init__(self, policy: str):
        self.tree = Tree(EVICTION_POLICIES.get(policy)(CAPACITY), has_host=False)
        self.free = list(range(CAPACITY))
        self.hits = self.pages = 0

    def serve(self, keys: list[bytes]) -> int:
        match = self.tree.match(keys)
        path = self.tree.path(match.page)
        hold = self.tree.hold(match.page, HoldKind.DEVICE)
        for page in path:
            self.tree.hit(page)
        tip = match.page
        for key in keys[match.device :]:
            tip = self.tree.insert(tip, key, Tier.DEVICE, self._slot())
            hold.release()
            hold = self.tree.hold(tip, HoldKind.DEVICE)
        if tip != ROOT:
            self.tree.touch(tip)
        hold.release()
        self.hits += match.device
        self.pages += len(keys)
        return match.device

    def _slot(self) -> int:
        if not self.free:
            page = self.tree.clean_leaves.coldest()
            assert page is not None
            self.free.append(self.tree.leave(page, Tier.DEVICE))
        return self.free.pop()


def pages(name: str, count: int) -> list[bytes]:
    return [f"{name}/{index}".encode().ljust(32, b".") for index in range(count)]


def hot_set_and_scan(policy: str) -> int:
    """Eight histories of 16 pages are asked for again and again, at random, between prompts that come once: twice what
    the device holds passes between two uses of a history, on average. Hits of the last 200 of 400 requests."""
    device, generator = Device(policy), random.Random(5)
    for number in range(400):
        if number == 200:
            device.hits = 0
        device.serve(pages(f"hot {generator.randrange(8)}", 16))
        device.serve(pages(f"once {number}", 64))
    return device.hits


def test_cost_resists_a_scan_and_lru_does_not():
    possible = 200 * 16
    assert hot_set_and_scan("cost") > 0.8 * possible
    assert hot_set_and_scan("lru") < 0.4 * possible


def test_cost_serves_a_cycle_that_lru_serves_nothing_of():
    """Thirty-two conversations in turn, each a page longer every round: twice what the device holds."""
    devices = {policy: Device(policy) for policy in ("cost", "lru")}
    for rounds in range(1, 17):
        for client in range(32):
            for device in devices.values():
                device.serve(pages(f"client {client}", rounds))
    assert devices["cost"].hits > 1.5 * devices["lru"].hits


def test_what_was_popular_makes_way_for_what_is():
    """After the fashion has changed, `cost` serves the new one; `lfu` still keeps the old one."""
    late = {}
    for policy in ("cost", "lfu"):
        device = Device(policy)
        for _ in range(200):
            for name in range(12):
                device.serve(pages(f"old {name}", 16))
        for _ in range(120):
            late[policy] = sum(device.serve(pages(f"new {name}", 16)) for name in range(15))
    assert late["cost"] == 15 * 16
    assert late["lfu"] < late["cost"]
