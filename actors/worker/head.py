"""The head of a replica: plans each step over the hierarchy and the scheduler, and takes in what came of it.

It alone decides; the ranks obey. `plan` and `absorb` alternate, called by the engine's thread.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stratakv.actors.settings import SchedulerSettings
from stratakv.actors.worker.endpoint import Emission
from stratakv.actors.worker.rank import StepResult
from stratakv.actors.worker.request import Request, RequestId
from stratakv.actors.worker.sampler import BadLogits, Draw, sample
from stratakv.actors.worker.scheduler import NoStore, Scheduler, Work
from stratakv.actors.worker.seeker import StoreSeeker
from stratakv.cluster.agreement import SlotTable, read
from stratakv.cluster.messages import Delta, Failure, HierarchyCounts
from stratakv.cluster.plan import Plan, Row
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.moves import Order, Progress
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import SlotPool
from stratakv.storage.settings import CacheSettings
from stratakv.storage.side_setup import SidePools
from stratakv.storage.tree import Tree

_log = logging.getLogger(__name__)


class PlanExecutor:
    """Carries the hierarchy's orders into the next plan, and what the ranks agreed on back."""

    def __init__(self) -> None:
        self._ordered: list[Order] = []
        self.agreed: Progress = read(SlotTable().fill(0, 0), 0)
        """What all ranks had finished at the last step; nothing yet."""

    def submit(self, order: Order) -> None:
        """Put `order` in the next plan."""
        self._ordered.append(order)

    def progress(self) -> Progress:
        """What all ranks had finished at the last step."""
        return self.agreed

    def take(self) -> tuple[Order, ...]:
        """The orders since the last plan."""
        taken, self._ordered = tuple(self._ordered), []
        return taken


@dataclass(frozen=True)
class Pools:
    """The slots that the head gives out, of every rank alike. `sides` is None for a model with full attention alone."""

    device: int
    host: int
    sides: SidePools | None = None


class Head:
    """Tree, slots and queue of one replica.

    `seeker_of` makes the part that asks the store, given the hierarchy; without it there is no store. `eos` ends
    answers; `limit` is the most tokens one request may have.
    """

    def __init__(
        self,
        cache: CacheSettings,
        scheduler: SchedulerSettings,
        pools: Pools,
        *,
        eos: Sequence[int],
        limit: int,
        seeker_of: Callable[[Hierarchy], StoreSeeker] | None = None,
    ):
        self._executor = PlanExecutor()
        eviction = EVICTION_POLICIES.get(cache.eviction_policy)(capacity=pools.device + pools.host)
        tree = Tree(eviction, has_host=pools.host > 0)
        # A quarter of host memory may wait for its write; more would crowd out what the host tier is for.
        backlog = pools.host // 4 if seeker_of is not None else 0
        self.hierarchy = Hierarchy(
            tree,
            SlotPool("device", pools.device),
            SlotPool("host", pools.host),
            WRITE_POLICIES.get(cache.write_policy)(),
            self._executor,
            backlog,
            pools.sides,
        )
        self.seeker = seeker_of(self.hierarchy) if seeker_of is not None else None
        waiting = self.seeker if self.seeker is not None else NoStore()
        self.scheduler = Scheduler(scheduler, self.hierarchy, cache.page_size, waiting)
        self._eos = frozenset(eos)
        self._limit = limit
        self._number = 0
        self._batch: list[Work] = []

    def add(self, request: Request) -> None:
        """Queue a new request, and look in the store for what this replica does not hold of it."""
        self.scheduler.add(request)
        if self.seeker is not None:
            self.seeker.begin(request)

    def remove(self, id: RequestId) -> None:
        """Forget a request and free what it holds; unknown ids are ignored."""
        self.scheduler.remove(id)
        if self.seeker is not None:
            self.seeker.forget(id)

    def plan(self) -> Plan | None:
        """The next step, or None when there is nothing to compute, to move or to wait for agreement on. RuntimeError
        when requests run that nothing will ever let go on: the replica must not hang."""
        self.hierarchy.absorb()
        if self.seeker is not None:
            self.seeker.update()
        self._batch = self.scheduler.schedule()
        orders = self._executor.take()
        if not self._batch and not orders and not self.hierarchy.in_flight:
            if self.scheduler.running:
                raise RuntimeError(
                    f"{len(self.scheduler.running)} requests run, none can go on, and nothing is in flight that could "
                    "change it: a fault in the bookkeeping of memory"
                )
            return None
        self._number += 1
        return Plan(self._number, orders, tuple(self._row(work) for work in self._batch))

    def _row(self, work: Work) -> Row:
        request = work.request
        assert request.lease is not None
        start, end = request.computed, request.computed + work.tokens
        pages = tuple(request.lease.slots[: request.span(work.tokens).stop])
        place = work.place
        return Row(
            tuple(request.tokens[start:end]), start, pages, work.samples, place.window, place.state
        )  # fmt: skip

    def absorb(self, result: StepResult) -> list[Emission]:
        """Sample, commit what the step computed, and end what is finished. Returns what clients are to be told.

        A request whose logits are not numbers fails by itself, and what it computed in this step is not kept.
        """
        self._executor.agreed = result.agreed
        self._note_speed(result.seconds)
        requests = [work.request for work in self._batch if work.samples]
        tokens = self._sample(requests, result.logits)
        sampled = list(zip(requests, tokens, strict=True))
        broken = {request.id for request, token in sampled if token is None}
        for work in self._batch:
            if work.request.id not in broken:
                self._commit(work)
        return [
            self._fail(request) if token is None else self._take(request, token) for request, token in sampled
        ]

    def _note_speed(self, seconds: float) -> None:
        """Learn from a step that was one prefill, with some decoding beside it at most."""
        prefills = [work for work in self._batch if work.tokens > 1]
        if self.seeker is not None and len(prefills) == 1:
            self.seeker.prefill.note(prefills[0].request.computed, prefills[0].tokens, seconds)

    def _commit(self, work: Work) -> None:
        full = work.request.advance(work.tokens)
        if full:
            assert work.request.lease is not None
            self.hierarchy.commit(work.request.lease, full, work.request.at_boundary)

    def _sample(self, requests: list[Request], logits: torch.Tensor | None) -> list[int | None]:
        """The next token of each request; None where nothing can be drawn."""
        if not requests:
            return []
        assert logits is not None
        draws = [Draw(request.sampling, request.output_tokens) for request in requests]
        try:
            return list(sample(logits, draws))
        except BadLogits as error:
            _log.error("%s", error)
            good = [row for row in range(len(draws)) if row not in error.rows]
            drawn = iter(sample(logits[good], [draws[row] for row in good]) if good else [])
            return [None if row in error.rows else next(drawn) for row in range(len(draws))]

    def _fail(self, request: Request) -> Emission:
        self.scheduler.finish(request)
        failure = Failure(
            "server_error", "the model gave no usable logits for this request; see the worker's log"
        )
        return Emission(request.id.client, Delta(id=request.id.id, failure=failure))

    def _take(self, request: Request, token: int) -> Emission:
        first = request.output_tokens == 0
        finish = request.append(token, self._eos, self._limit)
        if finish is not None:
            self.scheduler.finish(request)
        usage = request.final_usage() if first or finish else None
        return Emission(
            request.id.client, Delta(id=request.id.id, tokens=(token,), finish=finish, usage=usage)
        )

    def counts(self) -> HierarchyCounts:
        """What has moved, left and waited so far. For any thread: the numbers need not be of one moment."""
        hierarchy = self.hierarchy
        prefetches, writes, left = hierarchy.prefetches, hierarchy.writes, hierarchy.room.counts
        return HierarchyCounts(
            loaded=hierarchy.pages.loaded,
            backed_up=hierarchy.pages.backed_up,
            prefetched=prefetches.pages_landed,
            prefetch_lost=prefetches.pages_lost,
            written=writes.written,
            write_failed=writes.failed,
            write_dropped=writes.dropped,
            left_device=left.device,
            left_host=left.host,
            lost={str(reason): count for reason, count in list(left.lost.items())},
            retractions=self.scheduler.retractions,
            write_backlog=writes.pending,
        )

    def abort_all(self, failure: Failure) -> list[Emission]:
        """End every request with `failure`, and free what they hold."""
        requests = [*self.scheduler.running, *self.scheduler.waiting]
        for request in requests:
            self.remove(request.id)
        return [Emission(request.id.client, Delta(id=request.id.id, failure=failure)) for request in requests]
