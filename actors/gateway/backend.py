"""The gateway's Backend: the heads of all replicas, and the choice of one for each request."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import zmq.asyncio

from stratakv.actors.gateway.choice import LeastInFlight as LeastInFlight
from stratakv.actors.gateway.choice import Router
from stratakv.actors.gateway.link import Contact, HeadLink
from stratakv.api.backend import BackendStatus, BackendUnavailable
from stratakv.cluster.messages import Delta, Endpoint, Generate, KeyPair, ModelCard
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

_RETRY_AFTER = 5


class ClusterBackend:
    """An `api.backend.Backend` over the heads it was told of. All methods run on one event loop.

    `replicas` is how many the cluster is meant to have; `keys` is the gateways' common CURVE pair. `router` is closed
    with the backend.
    """

    def __init__(
        self,
        keys: KeyPair,
        wire: WireSettings,
        heartbeat: HeartbeatSettings,
        *,
        replicas: int,
        router: Router,
    ):
        self._keys, self._wire, self._heartbeat = keys, wire, heartbeat
        self._replicas = replicas
        self._router = router
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
        untold = True
        async with aclosing(choice.head.generate(request)) as deltas:
            async for delta in deltas:
                if untold and delta.usage is not None:
                    self._router.report(choice, delta.usage)
                    untold = False
                yield delta

    def _in(self, contact: Contact) -> list[HeadLink]:
        return [link for link in self._links.values() if link.contact is contact]

    def _why_none(self) -> str:
        if not self._links:
            return "no replica is ready yet"
        reasons = (f"replica {replica}: {link.why_lost}" for replica, link in self._links.items())
        return f"no replica is available ({'; '.join(reasons)})"
