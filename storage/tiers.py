"""The words of the hierarchy that everything else is said in: tiers, components, and why a token was not served."""

from enum import StrEnum

PageKey = bytes
"""32 raw bytes: the SHA-256 chain digest that names a full page (see keys.py)."""


class Tier(StrEnum):
    """Where KV can live. The same three words on the wire, in metrics and on the dashboard."""

    DEVICE = "device"
    HOST = "host"
    STORE = "store"


class Component(StrEnum):
    """A kind of cached state. Each has its own slots, blocks and rule for when a page is usable."""

    FULL = "full"
    """KV of layers that see every token before them: all pages of a prefix are needed."""
    SLIDING = "sliding"
    """KV of layers that see a window: the last pages of a prefix are needed."""
    RECURRENT = "recurrent"
    """State that is overwritten with every token: a checkpoint, valid at exactly one page boundary."""
    INDEXER = "indexer"
    """A further row per token, of a shape of its own, that full attention needs as well: keys of a sparse-attention
    indexer, KV of a draft model. It goes where the full page goes."""


class Miss(StrEnum):
    """Why prompt tokens were computed and not served from a tier. Reasons of one request sum to its computed
    tokens."""

    NEVER_SEEN = "never seen"
    """No tier has ever held (or this replica no longer remembers) a page with this key."""
    PAGE_TAIL = "page tail"
    """Tokens after the last full page boundary, or the one token that must be computed for logits."""
    EVICTED = "evicted"
    """The page was held here and left for want of room; remembered in a bounded list of recent departures."""
    CHECKPOINT_MISSING = "checkpoint missing"
    """KV of the page is held, but no recurrent checkpoint at a boundary so deep."""
    WINDOW_MISSING = "window missing"
    """KV of the page is held, but not all of the sliding window before a boundary so deep."""
    NO_HOST_ROOM = "no host room"
    """The page was dropped from the device uncopied because the host pool could not take it."""
    NO_STORE_ROOM = "no room to prefetch"
    """The store had the page, but host memory could not take it."""
    BELOW_THRESHOLD = "below threshold"
    """The store had the page, but too few of them in a row to be worth the way."""
    CUT = "cut by policy"
    """The prefetch policy said that computing is quicker than to wait any longer."""
    DEADLINE = "deadline"
    """The store did not answer, or not deliver, within `store.deadline`."""
    NOT_DELIVERED = "not delivered"
    """The store said that it had the page, and then it was gone, corrupt or failed."""
