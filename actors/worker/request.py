"""What the head knows of one request while it lives: its tokens, its keys, its place on the device, its account."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from stratakv.cluster.messages import FinishReason, Generate, Usage
from stratakv.storage.hierarchy import Admission, Lease
from stratakv.storage.keys import chain, namespace_seed
from stratakv.storage.tiers import Miss, PageKey


class RequestId(NamedTuple):
    """Gateways choose ids, so a request is known by its gateway and its id."""

    client: bytes
    id: str


class Request:
    """One request of the head. Mutated by the scheduler and the head only.

    `tokens` are prompt and output so far; KV of the first `computed` of them is in the pool; `keys` are those of all
    full pages of the first tokens that have been chained yet. `lease` is there while it runs.
    """

    def __init__(
        self, id: RequestId, message: Generate, tokens: list[int], keys: list[PageKey], page_size: int
    ):
        self.id = id
        self.sampling = message.sampling
        self.namespace = namespace_seed(message.extra_key, message.cache_salt)
        self.priority = message.priority
        self.tokens = tokens
        self.prompt_tokens = len(tokens)
        self.keys = keys
        self.lease: Lease | None = None
        self.computed = 0
        self.usage: Usage | None = None
        self.fetched: range = range(0)
        """Pages, by their number, that came from the store for this request."""
        self.shortfall: dict[int, Miss] = {}
        """Pages, by their number, that the store promised and did not deliver, or was not asked for, and why."""
        self.known = 0
        """Pages, from the first on, that are here or in the store, as far as anybody has looked."""
        self.overtaken = 0
        """Younger requests that were admitted before it."""
        self._page_size = page_size
        self._furthest = 0
        self._recomputed = 0
        self._counted = 0

    @property
    def output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens whose KV is still to be computed before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def pages(self) -> int:
        """Pages that all its tokens take."""
        return -(-len(self.tokens) // self._page_size)

    def span(self, count: int) -> range:
        """The pages, by number, that the next `count` uncomputed tokens lie in."""
        return range(self.computed // self._page_size, -(-(self.computed + count) // self._page_size))

    def tokens_to(self, page: int) -> int:
        """Tokens from the first uncomputed one to the start of page number `page`."""
        return page * self._page_size - self.computed

    @property
    def at_boundary(self) -> bool:
        """Whether the last token computed is the last of its page."""
        return self.computed % self._page_size == 0

    @property
    def counted(self) -> int:
        """Pages whose hits this request has counted, over all its admissions."""
        return self._counted

    def reusable_keys(self) -> Sequence[PageKey]:
        """Keys of the pages that a cache may serve: never the last token, whose logits must be computed."""
        self._chain_keys()
        return self.keys[: (len(self.tokens) - 1) // self._page_size]

    def start(self, admission: Admission) -> None:
        """Take the place that was given. The first time, the account of the prompt is made up."""
        self.lease = admission.lease
        cached = (admission.device_pages + admission.host_pages) * self._page_size
        self.computed = cached
        self._recomputed += max(0, self._furthest - cached)
        if self.usage is None:
            self.usage = self._account(admission)

    def stop(self) -> Lease:
        """Give up the place and return it; the tokens stay."""
        assert self.lease is not None
        lease, self.lease = self.lease, None
        self._counted = max(self._counted, lease.counted)
        self._furthest = max(self._furthest, self.computed)
        self.computed = 0
        return lease

    def advance(self, count: int) -> list[PageKey]:
        """KV of `count` more tokens is in the pool. Returns the keys of the pages that became full."""
        before = self.computed // self._page_size
        self.computed += count
        self._chain_keys()
        return self.keys[before : self.computed // self._page_size]

    def append(self, token: int, eos: Collection[int], limit: int) -> FinishReason | None:
        """Take a sampled token. Says whether it ends the answer; `limit` is the most tokens a request may have."""
        self.tokens.append(token)
        sampling = self.sampling
        if token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos):
            return FinishReason.STOP
        if self.output_tokens >= sampling.max_tokens or len(self.tokens) >= limit:
            return FinishReason.LENGTH
        return None

    def final_usage(self) -> Usage:
        """The account with the work that was done again after retractions."""
        usage = self.usage or Usage(prompt=self.prompt_tokens, computed=self.prompt_tokens)
        return Usage(
            prompt=usage.prompt, device=usage.device, host=usage.host, store=usage.store,
            computed=usage.computed, recomputed=self._recomputed, misses=usage.misses,
        )  # fmt: skip

    def _chain_keys(self) -> None:
        done = len(self.keys) * self._page_size
        if len(self.tokens) - done >= self._page_size:
            after = self.keys[-1] if self.keys else self.namespace
            self.keys += chain(self.tokens[done:], self._page_size, after)

    def _account(self, admission: Admission) -> Usage:
        """Who serves each token of the prompt: a tier, or the model, and then why."""
        page = self._page_size
        host_range = range(admission.device_pages, admission.device_pages + admission.host_pages)
        fetched = sum(index in self.fetched for index in host_range)
        device, host, store = (
            admission.device_pages * page,
            (admission.host_pages - fetched) * page,
            fetched * page,
        )
        computed = self.prompt_tokens - device - host - store
        reasons = [
            self.shortfall.get(index, miss) for index, miss in enumerate(admission.misses, host_range.stop)
        ]
        misses = {str(reason): pages * page for reason, pages in Counter(reasons).items()}
        tail = computed - sum(misses.values())
        if tail:
            misses[str(Miss.PAGE_TAIL)] = tail
        return Usage(
            prompt=self.prompt_tokens, device=device, host=host, store=store, computed=computed, misses=misses
        )
