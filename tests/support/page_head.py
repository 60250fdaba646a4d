"""A head without a model: it tells routers of the pages it is given, over a real endpoint, and answers at once."""

import queue
import threading

from stratakv.actors.worker.endpoint import Emission, HeadEndpoint, Load
from stratakv.cluster.messages import Delta, Endpoint, FinishReason, ModelCard, Usage
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.residence import Holdings, ResidenceLog
from stratakv.storage.tiers import Miss

DEADLINE = 60
CARD = ModelCard(
    name="toy",
    path="toy",
    vocab_size=1000,
    max_total_tokens=2_000_000,
    context_length=2_000_000,
    page_size=16,
    eos_token_ids=(0,),
    identity="00",
)


class PageHead:
    """Its engine is one thread that carries out what it is told in turn, as a real one does."""

    def __init__(self, replica, allowed, generation=1, wire=None, address=None):
        self.device, self.held = set(), set()
        self.log = ResidenceLog()
        self.watches = 0
        self.submitted = []
        self.load = Load(0, 0)
        self.answering = True
        self._work = queue.SimpleQueue()
        self.server = HeadEndpoint(
            wire or WireSettings(),
            HeartbeatSettings(interval=0.05, timeout=300),
            self,
            allowed=allowed,
            generation=generation,
            card=CARD,
            load=lambda: self.load,
        )
        self.endpoint = Endpoint(
            replica=replica,
            generation=generation,
            address=self.server.address,
            public_key=self.server.public_key,
            card=CARD,
        )
        self.server.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while (work := self._work.get()) is not None:
            work()

    def submit(self, client, request, keys):
        self.submitted.append(request.id)
        prompt = len(request.tokens) // 4
        computed = {"computed": prompt - 16, "misses": {str(Miss.NEVER_SEEN): prompt - 16}}
        usage = Usage(prompt=prompt, device=16, **computed)
        delta = Delta(id=request.id, tokens=(1,), finish=FinishReason.STOP, usage=usage)
        self._work.put(lambda: self.server.deliver(1, [Emission(client, delta)]))

    def abort(self, client, id):
        pass

    def watch(self, client):
        def answer():
            self.watches += 1
            if self.answering:
                self.server.deliver_events(self.log.drain())
                self.server.deliver_snapshot(client, Holdings(list(self.device), list(self.held)))

        self._work.put(answer)

    def change(self, device=(), held=(), gone=()):
        """Pages that come to the device, to the host alone, or leave altogether: one batch of events."""

        def work():
            for key in {*device, *held} - self.held:
                self.held.add(key)
                self.log.note_held(key, True)
            for key in set(device) - self.device:
                self.device.add(key)
                self.log.note_device(key, True)
            for key in set(gone) & self.device:
                self.device.remove(key)
                self.log.note_device(key, False)
            for key in set(gone) & self.held:
                self.held.remove(key)
                self.log.note_held(key, False)
            self.server.deliver_events(self.log.drain())

        self._work.put(work)

    def close(self):
        self._work.put(None)
        self._thread.join(DEADLINE)
        self.server.close()
