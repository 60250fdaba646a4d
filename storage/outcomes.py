"""What the page tree answers: how far a history is here, and what leaving gives back."""

from dataclasses import dataclass

from stratakv.storage.tiers import PageKey


@dataclass(frozen=True, slots=True)
class Match:
    """How far a history is here. `device` and `held` count pages from the start (device <= held); `page` is the
    deepest held page (ROOT when there is none)."""

    device: int
    held: int
    page: int


@dataclass(frozen=True, slots=True)
class Left:
    """What left a tier: the slots of the pages, and the keys of those that are in no tier now."""

    slots: list[int]
    lost: list[PageKey]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a dropped subtree gives back: slots per tier and the keys that are gone."""

    device_slots: list[int]
    host_slots: list[int]
    keys: list[PageKey]
