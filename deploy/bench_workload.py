"""The workload of `stratakv bench multiturn`: growing conversations in rounds, and the reuse that is in them.

Nothing here asks a server anything: which ids are sent, how long prompts are, and what a cache that never loses a
page could give back. The shape is that of the multi-turn benchmark by which hierarchical caches are compared.
"""

import random
from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """In which order a round asks its clients."""

    FIFO = "fifo"
    """The same in every round: what was used longest ago comes next, the worst case for LRU."""
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Workload:
    """`clients` conversations of `rounds` turns; a turn is `new_tokens` fresh ids and an answer of `output_tokens`.

    At most `parallel` requests are under way at once.
    """

    clients: int
    rounds: int
    new_tokens: int
    output_tokens: int
    order: Order
    seed: int
    parallel: int

    def prompt_tokens(self, turn: int) -> int:
        """Length of the prompt of round `turn` (from 0): the whole history and the fresh ids."""
        return self.new_tokens * (turn + 1) + self.output_tokens * turn

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation, its last answer included."""
        return self.prompt_tokens(self.rounds - 1) + self.output_tokens

    def all_prompt_tokens(self) -> int:
        """Prompt tokens of the whole run."""
        return self.clients * sum(self.prompt_tokens(turn) for turn in range(self.rounds))

    def reusable(self, turn: int, page_size: int) -> int:
        """Prompt tokens of round `turn` whose KV the round before has left.

        These are its full pages; the last token of an answer has no KV, as nothing was computed after it.
        """
        if turn == 0:
            return 0
        return (self.prompt_tokens(turn - 1) + self.output_tokens - 1) // page_size * page_size

    def ceiling_by_round(self, page_size: int) -> list[float]:
        """The hit rate of each round that no cache can exceed."""
        return [self.reusable(turn, page_size) / self.prompt_tokens(turn) for turn in range(self.rounds)]

    def ceiling(self, page_size: int) -> float:
        """The hit rate of the whole run that no cache can exceed."""
        reusable = self.clients * sum(self.reusable(turn, page_size) for turn in range(self.rounds))
        return reusable / self.all_prompt_tokens()

    def pages(self, page_size: int) -> int:
        """Pages of all conversations at their ends: a pool of so many never has to evict."""
        return self.clients * -(-self.longest // page_size)

    def fresh(self, client: int, turn: int, vocabulary: int) -> list[int]:
        """The ids that `client` adds in round `turn`, drawn from `vocabulary` ids; the same in every run."""
        draw = random.Random(f"{self.seed} {client} {turn}")
        return [draw.randrange(vocabulary) for _ in range(self.new_tokens)]

    def clients_in_order(self, turn: int) -> list[int]:
        """All clients in the order in which round `turn` asks them."""
        clients = list(range(self.clients))
        if self.order is Order.RANDOM:
            random.Random(f"{self.seed} order {turn}").shuffle(clients)
        return clients
