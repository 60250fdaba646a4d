"""A store that misbehaves on a seeded schedule: wraps another, for tests of everything that uses stores."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from random import Random
from threading import Lock
from typing import TypeVar

from pydantic import Field

from stratakv.storage.header import BlockHeader
from stratakv.storage.settings import SettingsModel
from stratakv.storage.stores.answers import (
    Failure,
    ForeignPages,
    Get,
    Got,
    Put,
    Removal,
    Shelf,
    Stored,
    StoredBlock,
    Usage,
)
from stratakv.storage.stores.base import Backend
from stratakv.storage.tiers import PageKey

T = TypeVar("T")


class FaultRates(SettingsModel):
    """How likely each fault is: per call for `delay`, `error` and `short`, per key for the others."""

    delay: float = Field(0.0, ge=0, le=1, description="a call takes up to `delay_seconds` longer")
    delay_seconds: float = Field(0.01, ge=0)
    error: float = Field(0.0, ge=0, le=1, description="a call raises")
    short: float = Field(0.0, ge=0, le=1, description="an answer lacks its last entries")
    fail: float = Field(0.0, ge=0, le=1, description="a key fails")
    lose: float = Field(0.0, ge=0, le=1, description="a key that was reported as written is not there")
    flip: float = Field(0.0, ge=0, le=1, description="one bit of a block that was read is wrong")


class Fault(StrEnum):
    """What can go wrong, and is counted."""

    DELAY = "delay"
    ERROR = "error"
    SHORT = "short"
    FAIL = "fail"
    LOSE = "lose"
    FLIP = "flip"


class FaultyBackend(Backend):
    """`inner` with faults. The same seed and the same order of calls give the same faults.

    `rates` may be replaced at any time, to let a store go down and come back; `injected` counts faults.
    """

    def __init__(self, inner: Backend, rates: FaultRates, seed: int):
        self.inner = inner
        self.rates = rates
        self.injected: Counter[Fault] = Counter()
        self._random = Random(seed)
        self._lock = Lock()

    def exists(self, shelf: Shelf, keys: Sequence[PageKey]) -> Sequence[bool]:
        """The inner answer, late, short, or not at all."""
        self._call()
        return self._short(self.inner.exists(shelf, keys))

    def read(self, shelf: Shelf, keys: Sequence[PageKey], blocks: Sequence[memoryview]) -> Sequence[Got]:
        """The inner answer, with keys that fail and blocks in which a bit is wrong."""
        self._call()
        got = list(self.inner.read(shelf, keys, blocks))
        for index, block in enumerate(blocks):
            if self._strikes(Fault.FAIL, self.rates.fail):
                got[index] = Got(Get.FAILED, Failure.ERROR, "injected")
            elif got[index].outcome is Get.HIT and self._strikes(Fault.FLIP, self.rates.flip):
                bit = self._below(8 * len(block))
                block[bit // 8] ^= 1 << bit % 8
        return self._short(got)

    def write(
        self, shelf: Shelf, headers: Sequence[BlockHeader], blocks: Sequence[memoryview]
    ) -> Sequence[Stored]:
        """The inner answer for the keys that do not fail; of those written some are not there."""
        self._call()
        stored = []
        for header, block in zip(headers, blocks, strict=True):
            if self._strikes(Fault.FAIL, self.rates.fail):
                stored.append(Stored(Put.FAILED, Failure.ERROR, "injected"))
            elif self._strikes(Fault.LOSE, self.rates.lose):
                stored.append(Stored(Put.WRITTEN))
            else:
                stored += self.inner.write(shelf, [header], [block])
        return self._short(stored)

    def delete(self, shelf: Shelf, keys: Sequence[PageKey]) -> Sequence[Removal]:
        """The inner answer, late, short, or not at all."""
        self._call()
        return self._short(self.inner.delete(shelf, keys))

    def quarantine(self, shelf: Shelf, key: PageKey) -> None:
        """Passed on, or not at all."""
        self._call()
        self.inner.quarantine(shelf, key)

    def scan(self) -> Iterator[StoredBlock]:
        """The inner blocks."""
        return self.inner.scan()

    def usage(self) -> Usage:
        """The inner usage."""
        return self.inner.usage()

    def foreign(self) -> Sequence[ForeignPages]:
        """The inner answer."""
        return self.inner.foreign()

    def remarks(self) -> Sequence[str]:
        """The inner remarks."""
        return self.inner.remarks()

    def write_nonce(self, nonce: str) -> None:
        """Passed on."""
        self.inner.write_nonce(nonce)

    def has_nonce(self, nonce: str) -> bool:
        """The inner answer."""
        return self.inner.has_nonce(nonce)

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()

    def _call(self) -> None:
        if self._strikes(Fault.DELAY, self.rates.delay):
            time.sleep(self.rates.delay_seconds * self._below(1000) / 1000)
        if self._strikes(Fault.ERROR, self.rates.error):
            raise ConnectionError("injected")

    def _short(self, answer: Sequence[T]) -> Sequence[T]:
        if answer and self._strikes(Fault.SHORT, self.rates.short):
            return answer[: self._below(len(answer))]
        return answer

    def _strikes(self, fault: Fault, rate: float) -> bool:
        with self._lock:
            struck = self._random.random() < rate
            self.injected[fault] += struck
            return struck

    def _below(self, bound: int) -> int:
        with self._lock:
            return self._random.randrange(bound)
