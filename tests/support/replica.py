"""A replica of several ranks without Ray: each rank a process with a real worker, faults at will, and a monitor.

The processes come from a fork server that has torch and transformers loaded, so that a replica starts in a second or
two. The tests' process stands for the supervisor: it passes the rendezvous on and judges the heartbeats.
"""

import functools
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from endpoint_fakes import GATEWAY, Client
from pydantic import Field

from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.worker.config import WorkerConfig
from stratakv.cluster.heartbeat import HeartbeatMonitor, Verdict
from stratakv.cluster.messages import (
    Endpoint,
    Generate,
    Ping,
    Sampling,
    Step,
    Usage,
    decode_to_gateway,
    pack_tokens,
)
from stratakv.cluster.rendezvous import Rendezvous
from stratakv.cluster.settings import HeartbeatSettings
from stratakv.storage.settings import CacheSettings, SettingsModel
from stratakv.storage.stores.faulty import FaultRates
from stratakv.storage.stores.settings import StoreSettings

T = TypeVar("T")
DEADLINE = 120.0
BEATS = HeartbeatSettings(interval=0.1, timeout=3.0)
_PRELOADED = [
    "stratakv.actors.worker.worker",
    "torch.distributed.tensor",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
    "transformers.distributed.tensor_parallel",
]


class Faults(SettingsModel):
    """What is wrong with one rank."""

    late: float = Field(0.0, description="it sleeps up to so many seconds at random points of each step")
    store: FaultRates = FaultRates()


SOUND = Faults()


class Answer(NamedTuple):
    tokens: list[int]
    usage: Usage


class Agreements(NamedTuple):
    """All that a rank has seen agreed: how many vectors, and a digest over them."""

    count: int
    digest: str


@functools.cache
def processes() -> Any:
    """Where processes come from: a fork server that has loaded what takes long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


class Replica:
    """`ranks` processes that serve the model in `model`; ends them all when left.

    `faults` by rank. `heard` has the last beat of each rank, or why it has none.
    """

    def __init__(
        self,
        model: Path,
        ranks: int,
        folder: Path,
        *,
        generation: int = 1,
        faults: dict[int, Faults] | None = None,
        store: StoreSettings | None = None,
        cache: dict[str, Any] | None = None,
        scheduler: dict[str, Any] | None = None,
        heartbeat: HeartbeatSettings = BEATS,
    ):
        self._slabs = slabs = Path("/dev/shm") / f"stratakv-test-{os.getpid()}"
        sizes = {"page_size": 4, "device_memory": 2**19, "host_memory": 2**19, "host_directory": slabs}
        self.configs = [
            WorkerConfig(
                cluster_id=f"{folder.name}-{os.getpid()}", replica=0, rank=rank, ranks=ranks,
                generation=generation, gateway_key=GATEWAY.public, model=ModelSettings(path=str(model)),
                cache=CacheSettings(**{**sizes, **(cache or {})}),
                scheduler=SchedulerSettings(**{"token_budget": 32, "max_running": 8, **(scheduler or {})}),
                store=store or StoreSettings(url=None), heartbeat=heartbeat, start_timeout=60.0,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        slabs.mkdir(exist_ok=True)
        self.monitor = HeartbeatMonitor(heartbeat, DEADLINE, time.monotonic)
        self.failures: dict[int, str] = {}
        self._checked: dict[int, tuple[Agreements, list[str]]] = {}
        self.steps: dict[int, int] = {}
        self._endpoint: Endpoint | None = None
        self._ready: set[int] = set()
        self._asked = 0
        self._pipes: list[Connection] = []
        self.processes = []
        for rank, config in enumerate(self.configs):
            ours, theirs = processes().Pipe()
            self._pipes.append(ours)
            fault = (faults or {}).get(rank, SOUND)
            process = processes().Process(target=_run_rank, args=(config, fault, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.monitor.expect(0, rank, generation)
        for rank in range(ranks):
            threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    def __enter__(self) -> "Replica":
        try:
            self.wait_until(lambda: self.failures or len(self._ready) == len(self.configs))
            assert not self.failures, self.failures
            assert self._endpoint is not None
        except AssertionError:
            self.end()
            raise
        self.client = Client(self._endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.end()

    def end(self) -> None:
        """Kill every rank, whatever it is doing, and take away its memory."""
        for process in self.processes:
            process.kill()
            process.join(DEADLINE)
        shutil.rmtree(self._slabs, ignore_errors=True)

    def send(self, prompt: list[int], max_tokens: int = 8, salt: str | None = None) -> str:
        self._asked += 1
        id = str(self._asked)
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.client.send(Generate(id=id, tokens=pack_tokens(prompt), sampling=sampling, cache_salt=salt))
        return id

    def ask(self, prompt: list[int], max_tokens: int = 8, salt: str | None = None) -> Answer:
        """One request, alone, to its end."""
        id = self.send(prompt, max_tokens, salt)
        tokens: list[int] = []
        while True:
            for delta in self._next_step().deltas:
                assert delta.id == id
                assert delta.failure is None, delta.failure
                tokens += delta.tokens
                if delta.finish:
                    return Answer(tokens, delta.usage)

    def _next_step(self) -> Step:
        """What comes next of an answer; pings meanwhile, as a gateway does."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            self.client.send(Ping())
            if self.client.socket.poll(500) and isinstance(
                step := decode_to_gateway(self.client.socket.recv()), Step
            ):
                return step
        raise TimeoutError(f"no answer within {DEADLINE:g} s; failures: {self.failures}")

    def ask_all(self, prompts: list[list[int]], max_tokens: int = 8) -> list[Answer]:
        """Several requests at once, to their ends."""
        tokens: dict[str, list[int]] = {self.send(prompt, max_tokens): [] for prompt in prompts}
        answers: dict[str, Answer] = {}
        while len(answers) < len(prompts):
            for delta in self.client.receive(Step).deltas:
                assert delta.failure is None, delta.failure
                tokens[delta.id] += delta.tokens
                if delta.finish:
                    answers[delta.id] = Answer(tokens[delta.id], delta.usage)
        return [answers[id] for id in tokens]

    def hurt(self, rank: int, how: signal.Signals) -> None:
        os.kill(self.processes[rank].pid, how)

    def set_store_faults(self, rank: int, rates: FaultRates) -> None:
        self._pipes[rank].send(("rates", rates))

    def verdicts(self) -> list[Verdict]:
        return self.monitor.overdue(time.monotonic())

    def check(self) -> None:
        """Nothing leaked on any rank, and all have seen the same agreed. Waits until the replica is idle."""
        head, problems = self._check(0)
        assert problems == []
        for rank in range(1, len(self.configs)):
            # The head may be idle a moment before the others have ended the last step.
            agreed, problems = self.wait_until(
                lambda rank=rank: found if (found := self._check(rank))[0].count == head.count else None
            )
            assert problems == []
            assert agreed == head, f"rank {rank} has seen other vectors agreed than rank 0"

    def _check(self, rank: int) -> tuple[Agreements, list[str]]:
        self._checked.pop(rank, None)
        self._pipes[rank].send(("check", None))
        return self.wait_until(lambda: self._checked.get(rank))

    def stop(self) -> None:
        """Let every rank end in good order, as the supervisor would."""
        for pipe in self._pipes:
            pipe.send(("stop", None))
        for process in self.processes:
            process.join(DEADLINE)
            assert process.exitcode == 0

    def wait_until(self, condition: Callable[[], T]) -> T:
        until = time.monotonic() + DEADLINE
        while not (value := condition()):
            assert time.monotonic() < until, f"not within {DEADLINE:g} s; failures: {self.failures}"
            time.sleep(0.01)
        return value

    def _listen(self, rank: int) -> None:
        pipe, generation = self._pipes[rank], self.configs[0].generation
        while True:
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError):
                return
            if kind == "rendezvous":
                for other in self._pipes[1:]:
                    other.send(("rendezvous", value))
            elif kind == "ready":
                self._endpoint = value or self._endpoint
                self._ready.add(rank)
            elif kind == "beat":
                self.steps[rank] = value.step
                self.monitor.beat(0, rank, generation, value.step, value.step_age)
            elif kind == "failed":
                self.failures[rank] = value
            elif kind == "checked":
                self._checked[rank] = value


class _PipeMeeting:
    """The meeting of ranks whose parent passes on what rank 0 publishes."""

    def __init__(self, tell: Callable[[str, Any], None]):
        self._tell = tell
        self._come = threading.Event()
        self._rendezvous: Rendezvous | None = None

    def publish(self, rendezvous: Rendezvous) -> None:
        self._tell("rendezvous", rendezvous)

    def wait(self, deadline: float) -> Rendezvous:
        if not self._come.wait(deadline) or self._rendezvous is None:
            raise TimeoutError(f"rank 0 was not heard of within {deadline:g} s")
        return self._rendezvous

    def give(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._come.set()


class _WatchedGroup:
    """A group that is late at times, and remembers all that was agreed."""

    def __init__(self, group: Any, late: float):
        self._group, self._late = group, late
        self.rank, self.size = group.rank, group.size
        self._random = random.Random(group.rank)
        self._digest = hashlib.sha256()
        self._count = 0

    def _dawdle(self) -> None:
        if self._late:
            time.sleep(self._random.random() * self._late)

    def all_reduce_min(self, vector: Any) -> "_WatchedPending":
        self._dawdle()
        return _WatchedPending(self, self._group.all_reduce_min(vector))

    def note(self, vector: Any) -> None:
        self._count += 1
        self._digest.update(vector.tobytes())
        self._dawdle()

    def agreements(self) -> Agreements:
        return Agreements(self._count, self._digest.hexdigest())


class _WatchedPending:
    def __init__(self, group: _WatchedGroup, pending: Any):
        self._group, self._pending = group, pending

    def wait(self) -> Any:
        vector = self._pending.wait()
        self._group.note(vector)
        return vector


def _run_rank(config: WorkerConfig, faults: Faults, pipe: Connection) -> None:
    """The process of a rank: starts a real worker, beats, and does as it is told."""
    from stratakv.actors.worker import worker as module
    from stratakv.storage.stores.faulty import FaultyBackend

    lock = threading.Lock()
    groups: list[_WatchedGroup] = []
    backends: list[FaultyBackend] = []

    def tell(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    gather, open_store = module.gather, module.open_store

    def watched_gather(*arguments: Any) -> Any:
        crew = gather(*arguments)
        crew.team.group = _WatchedGroup(crew.team.group, faults.late)
        groups.append(crew.team.group)
        return crew

    def faulty_store(*arguments: Any) -> Any:
        store = open_store(*arguments)
        store.backend = FaultyBackend(store.backend, faults.store, seed=config.rank)
        backends.append(store.backend)
        return store

    module.gather, module.open_store = watched_gather, faulty_store
    worker = module.Worker(config)
    meeting = _PipeMeeting(tell)
    ready, stopping = threading.Event(), threading.Event()

    def start() -> None:
        try:
            endpoint = worker.start(meeting)
        except Exception as error:
            tell("failed", f"{type(error).__name__}: {error}")
            return
        tell("ready", endpoint)
        ready.set()

    def beat() -> None:
        while not stopping.is_set():
            try:
                tell("beat", worker.heartbeat())
            except RuntimeError as error:
                tell("failed", str(error))
                return
            time.sleep(config.heartbeat.interval)

    def check() -> None:
        problems = worker.idle_check()  # the head's waits until it is idle
        tell("checked", (groups[0].agreements(), problems))

    threading.Thread(target=start, daemon=True).start()
    threading.Thread(target=lambda: ready.wait() and beat(), daemon=True).start()
    while True:
        try:
            kind, value = pipe.recv()
        except EOFError:
            return
        if kind == "rendezvous":
            meeting.give(value)
        elif kind == "rates":
            backends[0].rates = value
        elif kind == "check":
            check()
        elif kind == "stop":
            stopping.set()
            worker.stop()
            return
