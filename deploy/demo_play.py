"""The demo's five turns, and what each of them must show. Anything else is an error.

The conversation stays where its pages are, leaves the device for the host when others need the room, and comes back
from the store on another worker when its own is killed.
"""

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stratakv.cluster.routing.route import Receipt
from stratakv.deploy.demo_client import Answer, Client
from stratakv.deploy.demo_text import QUESTIONS, SHIP, Messages, continued, opening, other_ship
from stratakv.deploy.demo_view import Row, View
from stratakv.deploy.demo_watch import Watch

TOKENS = 830
"""The least tokens of a conversation's first prompt."""
_TOGETHER = 2
"""Other conversations at once: one for each replica."""
_SPARE = 3
"""How many times as many others as are needed, if all went as it should, are sent at most."""


class DemoError(Exception):
    """The demo did not show what it must; says what was missing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Prompt tokens of the conversation's five turns by tier."""

    device: int
    host: int
    store: int

    def sentence(self) -> str:
        """The last line of the demo."""
        return (
            f"every answer equal to the one without cache; {self.device:,} tokens from device, "
            f"{self.host:,} from host, {self.store:,} from store"
        )


class Play:
    """Plays the demo against a cluster whose device pools hold `device_pages` pages of `page_size` tokens."""

    def __init__(self, client: Client, watch: Watch, view: View, device_pages: int, page_size: int):
        self._client = client
        self._watch = watch
        self._view = view
        self._device_pages = device_pages
        self._page_size = page_size
        self._crowding = 0
        """Pages that came to the conversation's replica since its last turn."""
        self._home = -1
        """The replica that served the conversation last."""
        self._answers: list[Answer] = []

    def play(self) -> Outcome:
        """All five turns. DemoError, ClientError or WatchError for anything that is not as it should be."""
        self._watch.ready()
        lines = self._client.lines_for(SHIP, QUESTIONS[0], TOKENS)
        messages = opening(SHIP, lines, QUESTIONS[0])
        for turn in (1, 2, 3):
            answer = self._turn(turn, messages, "device" if turn > 1 else None)
            messages = continued(messages, answer.text, QUESTIONS[turn])
        self._crowd_out(lines)
        answer = self._turn(4, messages, "host")
        messages = continued(messages, answer.text, QUESTIONS[4])
        self._view.doing("waiting until every page is in the store")
        self._watch.written()
        self._view.doing(
            f"killing the worker of replica {self._home}, and waiting until the router lists its death"
        )
        self._watch.kill(self._home)
        self._turn(5, messages, "store")
        accounts = [answer.account for answer in self._answers]
        return Outcome(
            *(sum(account.of(tier) for account in accounts) for tier in ("device", "host", "store"))
        )

    def _turn(self, turn: int, messages: Messages, tier: str | None) -> Answer:
        """One turn and the same without cache. The answers must be equal, and most of the prompt from `tier`."""
        self._view.doing(f"turn {turn} of the conversation about the {SHIP}")
        answer = self._client.chat(messages)
        self._home = self._watch.served(1)[-1].route.replica
        self._crowding = 0
        self._view.show(Row(turn, SHIP, self._home, answer))
        check_hit(turn, answer, tier)
        self._view.doing(f"turn {turn} again under a fresh cache_salt: nothing of it is cached")
        plain = self._client.chat(messages, salt=secrets.token_hex(16))
        self._note(self._watch.served(1))
        check_equal(turn, answer, plain)
        self._view.show(Row(turn, SHIP, self._home, answer, plain))
        self._answers.append(answer)
        return answer

    def _crowd_out(self, lines: int) -> None:
        """Send other conversations until nothing of ours can be left on its device: as many pages as the pool has,
        all of them used later."""
        most = _SPARE * _TOGETHER * -(-self._device_pages * self._page_size // TOKENS)
        sent = 0
        while self._crowding < self._device_pages:
            if sent >= most:
                raise DemoError(
                    f"{sent} other conversations did not take the device of replica {self._home}: "
                    f"{self._crowding} of {self._device_pages} pages"
                )
            self._view.doing(
                f"other conversations take the device of replica {self._home}: {self._crowding} of "
                f"{self._device_pages} pages"
            )
            ships = [other_ship(sent + number) for number in range(_TOGETHER)]
            answers = self._together([opening(ship, lines, QUESTIONS[0]) for ship in ships])
            receipts = self._watch.served(_TOGETHER)
            self._note(receipts)
            # Whose receipt is whose is told by the length of the prompt; of equal ones it makes no difference.
            by_length = sorted(zip(ships, answers, strict=True), key=lambda one: one[1].account.prompt)
            receipts.sort(key=lambda receipt: receipt.tokens)
            for (ship, answer), receipt in zip(by_length, receipts, strict=True):
                self._view.show(Row(1, ship, receipt.route.replica, answer))
            sent += _TOGETHER

    def _together(self, openings: Sequence[Messages]) -> list[Answer]:
        """Answers to requests that run at the same time. On Ctrl-C nothing is waited for."""
        pool = ThreadPoolExecutor(len(openings), "demo")
        try:
            return list(pool.map(self._client.chat, openings))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _note(self, receipts: Sequence[Receipt]) -> None:
        self._crowding += sum(
            receipt.tokens // self._page_size for receipt in receipts if receipt.route.replica == self._home
        )


def check_hit(turn: int, answer: Answer, tier: str | None) -> None:
    """DemoError unless at least half of the prompt came from `tier`; None asks for nothing."""
    account = answer.account
    if tier is not None and 2 * account.of(tier) < account.prompt:
        raise DemoError(
            f"turn {turn} should have come from the {tier}: of its {account.prompt} prompt tokens {account.device} "
            f"came from the device, {account.host} from the host and {account.store} from the store"
        )


def check_equal(turn: int, answer: Answer, plain: Answer) -> None:
    """DemoError unless both answers are the same, and nothing of `plain` came from a cache."""
    cached = plain.account.prompt - plain.account.computed
    if cached:
        raise DemoError(f"turn {turn} under a fresh cache_salt had {cached} tokens from a cache")
    if answer.text != plain.text:
        raise DemoError(f"turn {turn} was answered {answer.text!r}, and without cache {plain.text!r}")
