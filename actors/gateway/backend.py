"""The gateway's Backend: the heads of all replicas, and the choice of one for each request."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import zmq.asyncio

from stratakv.actors.gateway.choice import Choice, Router
from stratakv.actors.gateway.choice import LeastInFlight as LeastInFlight
from stratakv.actors.gateway.link import Contact, HeadLink
from stratakv.actors.gateway.track import Tracker, Untracked
from stratakv.api.backend import BackendStatus, BackendUnavailable, ReplicaView
from stratakv.cluster import tally
from stratakv.cluster.account import count_request
from stratakv.cluster.events import pack_keys
from stratakv.cluster.follower import CountFollower
from stratakv.cluster.messages import Delta, Endpoint, Generate, KeyPair, ModelCard, Usage
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.cluster.tally import Tally
from stratakv.storage.tiers import PageKey

_RETRY_AFTER = 5


class ClusterBackend:
    """An `api.backend.Backend` over the heads it was told of. All methods run on one event loop.

    `replicas` is how many the cluster is meant to have; `keys` is the gateways' common CURVE pair. `router` is closed
    with the backend; `tracker` hears of first tokens and ends. `tally` is what it counts.
    """

    def __init__(
        self,
        keys: KeyPair,
        wire: WireSettings,
        heartbeat: HeartbeatSettings,
        *,
        replicas: int,
        router: Router,
        tracker: Tracker | None = None,
    ):
        self._keys, self._wire, self._heartbeat = keys, wire, heartbeat
        self._replicas = replicas
        self._router = router
        self._tracker = tracker or Untracked()
        self.tally = Tally()
        self._follower = CountFollower(self.tally)
        self._links: dict[int, HeadLink] = {}
        self._card: ModelCard | None = None
        self._context = zmq.asyncio.Context()

    async def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Talk to exactly these heads from now on. Answers of those that vanished or were replaced end at
        once.

        An endpoint older than the one in use for its replica is ignored.
        """
        links: dict[int, HeadLink] = {}
        for endpoint in endpoints:
            current = links.get(endpoint.replica) or self._links.get(endpoint.replica)
            if current is not None and endpoint.generation <= current.endpoint.generation:
                links[endpoint.replica] = current
                continue
            links[endpoint.replica] = HeadLink(
                endpoint, self._keys, self._wire, self._heartbeat, self._context
            )
            links[endpoint.replica].start()
        dropped = [link for link in self._links.values() if link not in links.values()]
        self._card = self.card()
        self._links = links
        await asyncio.gather(*(link.close() for link in dropped))

    async def close(self) -> None:
        """Close all links and the router; answers in flight end with BackendUnavailable."""
        await self._router.close()
        await self.set_endpoints([])
        self._context.destroy(linger=0)

    def card(self) -> ModelCard | None:
        """The model served, as a head that is or was live has it; None until there was one."""
        cards = (link.endpoint.card for link in self._links.values() if link.was_live)
        return next(cards, self._card)

    def status(self) -> BackendStatus:
        """Counts over the live heads."""
        live = self._in(Contact.LIVE)
        return BackendStatus(
            replicas_ready=len(live),
            replicas_total=max(self._replicas, len(self._links)),
            running=sum(link.load.running for link in live),
            waiting=sum(link.load.waiting for link in live),
        )

    async def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """See `Backend.generate`. Takes a live head; if there is none, one that is just being contacted."""
        heads = self._in(Contact.LIVE) or self._in(Contact.CONNECTING)
        if not heads:
            raise BackendUnavailable(self._why_none(), _RETRY_AFTER)
        choice = await self._router.route(request, heads)
        replica = choice.head.endpoint.replica
        self.tally.add(tally.ROUTES, 1, replica, choice.reason)
        usage, output = None, 0
        try:
            async with aclosing(choice.head.generate(request)) as deltas:
                async for delta in deltas:
                    if usage is None and delta.usage is not None:
                        self._begun(choice, request.id, delta.usage)
                    usage = delta.usage or usage
                    output += len(delta.tokens)
                    yield delta
        except BackendUnavailable:
            self.tally.add(tally.BROKEN, 1, replica)
            raise
        finally:
            self._tracker.end(choice.head.endpoint, request.id)
            count_request(self.tally, replica, usage, output)

    async def explain(self, keys: Sequence[PageKey], deadline: float) -> list[ReplicaView]:
        """See `Backend.explain`. Asks all live heads at once."""
        heads = sorted(self._in(Contact.LIVE), key=lambda head: head.endpoint.replica)
        if not heads:
            raise BackendUnavailable(self._why_none(), _RETRY_AFTER)
        packed = pack_keys(keys)
        return list(await asyncio.gather(*(_view(head, packed, deadline) for head in heads)))

    def _begun(self, choice: Choice, id: str, usage: Usage) -> None:
        """The first token of a request is here, and with it what came of the choice."""
        self._router.report(choice, usage)
        self._tracker.begin(choice.head.endpoint, id, usage)

    def refresh(self) -> None:
        """Bring what heads tell of themselves in the tally up to date; a replica that is away has no load."""
        loads = {link.endpoint.replica: link.load for link in self._in(Contact.LIVE)}
        for replica in range(self._replicas):
            load = loads.get(replica)
            self.tally.set(tally.RUNNING, load.running if load else 0, replica)
            self.tally.set(tally.WAITING, load.waiting if load else 0, replica)
            if load:
                self._follower.heard(replica, load.generation, load.counts)
            else:
                self._follower.away(replica)

    def _in(self, contact: Contact) -> list[HeadLink]:
        return [link for link in self._links.values() if link.contact is contact]

    def _why_none(self) -> str:
        if not self._links:
            return "no replica is ready yet"
        reasons = (f"replica {replica}: {link.why_lost}" for replica, link in self._links.items())
        return f"no replica is available ({'; '.join(reasons)})"


async def _view(head: HeadLink, keys: bytes, deadline: float) -> ReplicaView:
    replica = head.endpoint.replica
    try:
        async with asyncio.timeout(deadline):
            return ReplicaView(replica, await head.explain(keys))
    except TimeoutError:
        return ReplicaView(replica, trouble=f"it did not answer within {deadline:g} s (api.explain_timeout)")
    except BackendUnavailable as error:
        return ReplicaView(replica, trouble=str(error))
