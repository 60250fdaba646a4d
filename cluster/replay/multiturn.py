"""The seed's workload: clients that talk in rounds, each prompt being the client's whole history and new tokens."""

from collections.abc import Iterator
from enum import StrEnum
from random import Random

from pydantic import Field

from stratakv.cluster.replay.request import ReplayRequest
from stratakv.storage.settings import SettingsModel
from stratakv.storage.tiers import PageKey


class Order(StrEnum):
    """In which order the clients of a round are served."""

    FIFO = "fifo"
    """The same in every round: the history that comes next is the one that was not used for longest."""
    RANDOM = "random"


class MultiturnSettings(SettingsModel):
    """A workload of `clients` times `rounds` requests, with a barrier between rounds."""

    clients: int = Field(48, ge=1)
    rounds: int = Field(60, ge=1)
    new_tokens: int = Field(4096, ge=1, description="tokens a client adds in each round")
    output_tokens: int = Field(16, ge=1, description="tokens of each answer")
    page_size: int = Field(64, ge=1)
    order: Order = Order.FIFO
    seed: int = 0

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return self.clients * self.rounds


def multiturn(settings: MultiturnSettings) -> Iterator[ReplayRequest]:
    """The requests of the workload, in order.

    A page key is made of the client and the page's number, since no two clients have a page in common; to the tree it
    is a key like any other.
    """
    random = Random(settings.seed)
    clients = list(range(settings.clients))
    keys: list[list[PageKey]] = [[] for _ in clients]
    turn = settings.new_tokens + settings.output_tokens
    for number in range(settings.rounds):
        if settings.order is Order.RANDOM:
            random.shuffle(clients)
        seen = number * turn
        pages = (seen + turn - 1) // settings.page_size
        for client in clients:
            own = keys[client]
            own.extend(b"%016d%016d" % (client, page) for page in range(len(own), pages))
            yield ReplayRequest(
                round=number, seconds=float(number), prompt_tokens=seen + settings.new_tokens,
                output_tokens=settings.output_tokens, keys=own[:pages], seen_tokens=seen,
                name=f"round {number} of client {client}",
            )  # fmt: skip
