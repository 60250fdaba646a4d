"""A rank without a model: it answers every request with the prompt's own tokens, over the real wire.

For benches of everything around the engine, and for tests that kill processes: set `supervisor.worker_class` to
`stratakv.actors.worker.echo:EchoWorker`. The model's directory still gives the tokenizer.
"""

import itertools
import json
import queue
import threading
from pathlib import Path

import numpy as np

from stratakv.actors.worker.config import Heartbeat, StartError, WorkerConfig
from stratakv.actors.worker.endpoint import Emission, HeadEndpoint, Load
from stratakv.cluster.messages import Delta, Endpoint, FinishReason, Generate, ModelCard, Usage
from stratakv.cluster.rendezvous import Meeting
from stratakv.storage.residence import Holdings
from stratakv.storage.tiers import Miss, PageKey


class EchoWorker:
    """See RankWorker. One token per request and step; what is asked beyond the prompt starts it over."""

    step_seconds = 0.02

    def __init__(self, config: WorkerConfig):
        self._config = config
        self._inbox: queue.SimpleQueue[tuple[bytes, str, Generate | None]] = queue.SimpleQueue()
        self._running: dict[tuple[bytes, str], _Echo] = {}
        self._step = 0
        self._ended = threading.Event()
        self._endpoint: HeadEndpoint | None = None
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)

    def start(self, meeting: Meeting) -> Endpoint:
        """Read the model's config, bind, and echo from now on."""
        card = self._card()
        config = self._config
        self._endpoint = HeadEndpoint(
            config.wire,
            config.heartbeat,
            self,
            allowed=config.gateway_key,
            generation=config.generation,
            card=card,
            load=lambda: Load(len(self._running), 0),
        )
        self._endpoint.start()
        self._thread.start()
        return Endpoint(
            replica=config.replica,
            generation=config.generation,
            address=self._endpoint.address,
            public_key=self._endpoint.public_key,
            card=card,
        )

    def submit(self, client: bytes, request: Generate, keys: list[PageKey]) -> None:
        """See EngineInbox."""
        self._inbox.put((client, request.id, request))

    def abort(self, client: bytes, id: str) -> None:
        """See EngineInbox."""
        self._inbox.put((client, id, None))

    def watch(self, client: bytes) -> None:
        """See EngineInbox. An echo holds no pages."""
        assert self._endpoint is not None
        self._endpoint.deliver_snapshot(client, Holdings((), ()))

    def heartbeat(self) -> Heartbeat:
        """See RankWorker."""
        if self._endpoint is None or not self._thread.is_alive() or not self._endpoint.alive:
            raise RuntimeError("a thread of the echo worker has ended")
        return Heartbeat(step=self._step, step_age=0.0)

    def idle_check(self) -> list[str]:
        """See RankWorker."""
        return [f"request {id} is still running" for _, id in self._running]

    def wait_for(self, id: str, deadline: float) -> None:
        """See RankWorker."""
        if self._endpoint is not None:
            self._endpoint.wait_for(id, deadline)

    def drain(self, deadline: float) -> None:
        """See RankWorker. An echo has nothing to lose."""

    def stop(self) -> None:
        """See RankWorker."""
        self._ended.set()
        if self._endpoint is not None:
            self._endpoint.close()

    def _card(self) -> ModelCard:
        settings = self._config.model
        try:
            config = json.loads((Path(settings.path) / "config.json").read_text())
            vocabulary, context = int(config["vocab_size"]), int(config["max_position_embeddings"])
        except (OSError, ValueError, KeyError) as error:
            raise StartError(f"model.path: {settings.path} has no usable config.json ({error})") from None
        return ModelCard(
            name=settings.served_name or Path(settings.path).name,
            path=settings.path,
            vocab_size=vocabulary,
            max_total_tokens=context,
            context_length=context,
            page_size=self._config.cache.page_size,
            eos_token_ids=(),
            identity="echo",
        )

    def _run(self) -> None:
        assert self._endpoint is not None
        while not self._ended.wait(self.step_seconds if self._running else self.step_seconds * 5):
            self._take_in()
            if not self._running:
                continue
            self._step += 1
            emissions = [Emission(client, echo.next()) for (client, _), echo in self._running.items()]
            self._endpoint.deliver(self._step, emissions)
            self._running = {key: echo for key, echo in self._running.items() if echo.left}

    def _take_in(self) -> None:
        while not self._inbox.empty():
            client, id, request = self._inbox.get()
            if request is None:
                self._running.pop((client, id), None)
            else:
                self._running[client, id] = _Echo(request)


class QuickEchoWorker(EchoWorker):
    """An echo that takes a millisecond a step: what is slow around it shows."""

    step_seconds = 0.001


class _Echo:
    """One request that is being echoed; `left` tokens are still to come."""

    def __init__(self, request: Generate):
        tokens = np.frombuffer(request.tokens, dtype="<u4").tolist()
        self._id = request.id
        self._tokens = itertools.cycle(tokens)
        self._usage = Usage(
            prompt=len(tokens), computed=len(tokens), misses={str(Miss.NEVER_SEEN): len(tokens)}
        )
        self._first = True
        self.left = request.sampling.max_tokens

    def next(self) -> Delta:
        """The next token; usage comes with the first and the last."""
        self.left -= 1
        finish = None if self.left else FinishReason.LENGTH
        usage = self._usage if self._first or finish else None
        self._first = False
        return Delta(id=self._id, tokens=(next(self._tokens),), finish=finish, usage=usage)
