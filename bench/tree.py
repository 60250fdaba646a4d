"""The page tree by itself: pages matched, inserted and evicted a second, bytes a page, and the collector's pause.

    python bench/tree.py [--pages 10000 100000 1000000] [--depth 512] [--json FILE]

Histories of `--depth` pages share their first half in groups of eight, as conversations share a system prompt. Bytes a
page are what the process grew by; the 65 bytes of the key itself, which requests share, come on top. The pause is the
longest of three full garbage collections with the tree in memory.
"""

import argparse
import gc
import json
import resource
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import Tree

SHARING = 8
"""Histories that have their first half in common."""


@dataclass(frozen=True)
class Result:
    """One size. Rates are pages a second; `match_ns` is nanoseconds per page of the matched histories."""

    pages: int
    inserted: float
    matched: float
    match_ns: float
    evicted: float
    bytes_per_page: float
    gc_pause_ms: float


def histories(pages: int, depth: int) -> list[list[bytes]]:
    """Chains of keys whose distinct pages number `pages` or a little more."""
    made: list[list[bytes]] = []
    distinct = 0
    while distinct < pages:
        group = len(made) // SHARING
        shared = [sha256(b"%d %d" % (group, n)).digest() for n in range(depth // 2)]
        own = [sha256(b"%d own %d" % (len(made), n)).digest() for n in range(depth - depth // 2)]
        distinct += len(own) + (len(shared) if len(made) % SHARING == 0 else 0)
        made.append(shared + own)
    return made


def insert_all(tree: Tree, chains: list[list[bytes]]) -> int:
    """Put every page on the device, of each history what is new in one run, as a request does. Returns how many."""
    slot = 0
    for chain in chains:
        found = tree.match(chain)
        fresh = chain[found.held :]
        tree.insert_run(found.page, fresh, Tier.DEVICE, list(range(slot, slot + len(fresh))), b"")
        slot += len(fresh)
        tree.log.drain()  # as a replica does after each step
    return slot


def evict_all(tree: Tree) -> int:
    """Let every page leave, the coldest first, 16 at a time as a step of 1,024 tokens needs them."""
    gone = 0
    while left := tree.leave_run(Tier.DEVICE, 16).slots:
        gone += len(left)
        tree.log.drain()
    return gone


def longest_pause() -> float:
    """Seconds of the longest of three full collections."""
    pauses = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        pauses.append(time.perf_counter() - began)
    return max(pauses)


def resident_bytes() -> int:
    """What the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(pages: int, depth: int) -> Result:
    """One size, from an empty tree to an empty tree."""
    chains = histories(pages, depth)
    tree = Tree(EVICTION_POLICIES.get("lru")(), has_host=False)
    gc.collect()
    before = resident_bytes()
    began = time.perf_counter()
    count = insert_all(tree, chains)
    inserting = time.perf_counter() - began
    grown, pause = resident_bytes() - before, longest_pause()
    began = time.perf_counter()
    matched = sum(tree.match(chain).held for chain in chains)
    matching = time.perf_counter() - began
    began = time.perf_counter()
    evicted = evict_all(tree)
    evicting = time.perf_counter() - began
    assert evicted == count and len(tree) == 0 and matched == sum(map(len, chains))
    return Result(
        count, count / inserting, matched / matching, 1e9 * matching / matched, evicted / evicting,
        grown / count, 1e3 * pause,
    )  # fmt: skip


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--depth", type=int, default=512, help="pages of a history")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    results = [measure(pages, options.depth) for pages in options.pages]
    table = Table(title="The page tree")
    for column in (
        "pages", "inserted/s", "matched/s", "match ns/page", "evicted/s", "bytes/page", "gc pause ms",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for r in results:
        table.add_row(
            f"{r.pages:,}", f"{r.inserted:,.0f}", f"{r.matched:,.0f}", f"{r.match_ns:.1f}", f"{r.evicted:,.0f}",
            f"{r.bytes_per_page:.0f}", f"{r.gc_pause_ms:.1f}",
        )  # fmt: skip
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
