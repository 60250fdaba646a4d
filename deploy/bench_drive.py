"""Drives a workload against a gateway, round by round, and keeps what each request came to.

A history is the ids that were sent and the ids that were answered, so it is exact whatever the tokenizer. A round
begins when the one before it has ended, at once: nobody sleeps, so wall time is serving time.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stratakv.deploy.bench_client import Completion, ServedModel
from stratakv.deploy.bench_workload import Workload
from stratakv.deploy.demo_client import Account, ClientError


class Asked(Protocol):
    """Who is asked; `BenchClient` is one."""

    async def complete(self, model: str, prompt: list[int], outputs: int, salt: str) -> Completion:
        """Exactly `outputs` ids after `prompt`, or ClientError."""


class DoesNotFit(ValueError):
    """The workload asks for more than the server takes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request."""

    client: int
    turn: int
    ttft: float
    seconds: float
    account: Account
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """All that was measured: answered requests, a sentence per failed one, and seconds from first to last.

    `histories` are the conversations that went through to the end, by client.
    """

    samples: list[Sample]
    failures: list[str]
    histories: dict[int, list[int]]
    seconds: float


async def drive(workload: Workload, model: ServedModel, asked: Asked, progress: Callable[[], None]) -> Run:
    """Run `workload`, calling `progress` after each request that is over. DoesNotFit before anything is sent.

    A client whose request fails has no history to go on with and asks no more; the others do.
    """
    if workload.longest > model.max_tokens:
        raise DoesNotFit(
            f"the last request has {workload.longest} tokens and {model.name} takes {model.max_tokens}: use fewer "
            "--rounds, fewer --new-tokens, or a device pool or model that takes more"
        )
    driver = _Driver(workload, model, asked, progress)
    began = time.perf_counter()
    for turn in range(workload.rounds):
        await driver.round(turn)
    return Run(driver.samples, driver.failures, driver.histories, time.perf_counter() - began)


class _Driver:
    def __init__(
        self, workload: Workload, model: ServedModel, asked: Asked, progress: Callable[[], None]
    ) -> None:
        self._workload = workload
        self._model = model
        self._asked = asked
        self._progress = progress
        self._salt = f"bench-{secrets.token_hex(8)}"  # nothing of an earlier run is a hit
        self.histories: dict[int, list[int]] = {client: [] for client in range(workload.clients)}
        self.samples: list[Sample] = []
        self.failures: list[str] = []

    async def round(self, turn: int) -> None:
        """Ask every client that is left once."""
        left = deque(client for client in self._workload.clients_in_order(turn) if client in self.histories)

        async def ask_next() -> None:
            while left:
                await self._ask(left.popleft(), turn)

        await asyncio.gather(*(ask_next() for _ in range(self._workload.parallel)))

    async def _ask(self, client: int, turn: int) -> None:
        workload, model = self._workload, self._model
        prompt = self.histories[client] + workload.fresh(client, turn, model.vocabulary)
        try:
            done = await self._asked.complete(model.name, prompt, workload.output_tokens, self._salt)
            if done.account.prompt != len(prompt):
                raise ClientError(f"{len(prompt)} ids were sent and {done.account.prompt} accounted for")
        except ClientError as error:
            self.failures.append(f"client {client} in round {turn}: {error}")
            del self.histories[client]
        else:
            self.histories[client] = prompt + done.tokens
            self.samples.append(Sample(client, turn, done.ttft, done.seconds, done.account, done.reasons))
        self._progress()
