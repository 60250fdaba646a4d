"""Greedy tokens with the cache on equal those with it off, on real networks of several families.

The reference is the same engine under a salt of its own, so that nothing can be reused, one request at a time and with
its prompt in one piece. Where tokens differ, the first difference must lie where the uncached run's two best logits are
closer than twice the rounding error; such ties are counted and printed.
"""

import random
from collections.abc import Callable, Sequence

import pytest
import tiny_models
from engine_fakes import EngineClient
from shared_store import shared_store
from tiny_families import PLAIN

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.model import Model
from stratakv.cluster.plan import Row
from stratakv.kernels.memory import DeviceMemory
from stratakv.storage.hierarchy_check import idle_problems

ROUNDING = 1e-4
"""The largest relative difference of logits that batching and chunking may make in float32."""


@pytest.fixture(scope="module", params=PLAIN)
def model(request, tmp_path_factory) -> Model:
    directory = tiny_models.write_model(tmp_path_factory.mktemp("identity") / request.param, request.param)
    return Model.load(ModelSettings(path=str(directory), device="cpu"))


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


def engine(model: Model, page_size: int, **options: object) -> EngineClient:
    sizes = {"device": 2048 // page_size, "host": 4096 // page_size, "token_budget": 512, "max_running": 8}
    return EngineClient(model, model.shapes, page_size=page_size, limit=512, **{**sizes, **options})


class Uncached:
    """Works out answers without any reuse, and how close the two best logits were at every step."""

    def __init__(self, model: Model, page_size: int):
        self._model = model
        self._page_size = page_size
        self.ties = 0

    def answer(self, tokens: list[int], count: int) -> tuple[list[int], list[float]]:
        pages = tuple(range(-(-(len(tokens) + count) // self._page_size)))
        memory = DeviceMemory.build(
            self._model.shapes, full=len(pages), page_size=self._page_size, dtype=self._model.dtype
        )
        output, margins, start, fresh = [], [], 0, list(tokens)
        for _ in range(count):
            row = Row(tuple(fresh), start, pages[: -(-(start + len(fresh)) // self._page_size)], True)
            logits = self._model.forward([row], memory)[0]
            best = logits.topk(2).values
            output.append(int(logits.argmax()))
            margins.append(float((best[0] - best[1]) / logits.abs().max()))
            start, fresh = start + len(fresh), [output[-1]]
        return output, margins

    def check(self, tokens: list[int], answer: Sequence[int]) -> None:
        expected, margins = self.answer(tokens, len(answer))
        for position, (one, other) in enumerate(zip(answer, expected, strict=True)):
            if one != other:
                assert margins[position] < 2 * ROUNDING, (
                    f"token {position} is {one}, not {other}, and it is no tie"
                )
                self.ties += 1
                print(f"tie at token {position}: the two best logits were {margins[position]:.1e} apart")
                return


def ask(client: EngineClient, id: str, tokens: list[int], count: int = 12) -> tuple[list[int], object]:
    client.send(id, tokens, count)
    client.work()
    return client.output(id), client.told[id][-1].usage


def device_hit(model: Model, page_size: int, uncached: Uncached) -> None:
    client, tokens = engine(model, page_size), prompt(1, 150)
    for turn in range(3):
        answer, usage = ask(client, str(turn), tokens)
        uncached.check(tokens, answer)
        assert turn == 0 or usage.device >= (len(tokens) - 30) // page_size * page_size
        tokens = tokens + answer + prompt(turn, 9)


def host_hit(model: Model, page_size: int, uncached: Uncached) -> None:
    client = engine(model, page_size, device=-(-240 // page_size))
    for seed in (1, 2, 3):
        ask(client, f"first {seed}", prompt(seed, 180))
    answer, usage = ask(client, "back", prompt(1, 180))
    uncached.check(prompt(1, 180), answer)
    assert usage.host >= 64, usage


def store_hit(model: Model, page_size: int, uncached: Uncached) -> None:
    store, tokens = shared_store(), prompt(1, 180)
    ask(engine(model, page_size, store=store), "there", tokens)
    answer, usage = ask(engine(model, page_size, store=store), "here", tokens)
    uncached.check(tokens, answer)
    assert usage.store == 179 // page_size * page_size, usage


def chunked(model: Model, page_size: int, uncached: Uncached) -> None:
    client = engine(model, page_size, token_budget=23)
    for id in ("cold", "warm"):
        answer, _ = ask(client, id, prompt(1, 200))
        uncached.check(prompt(1, 200), answer)


def mixed_batch(model: Model, page_size: int, uncached: Uncached) -> None:
    client = engine(model, page_size, token_budget=48)
    prompts = [prompt(seed % 3, 60 + 20 * seed) for seed in range(6)]
    for i, tokens in enumerate(prompts):
        client.send(str(i), tokens, 10 + i)
    client.work()
    for i, tokens in enumerate(prompts):
        uncached.check(tokens, client.output(str(i)))


def retracted(model: Model, page_size: int, uncached: Uncached) -> None:
    client = engine(model, page_size, device=-(-340 // page_size))
    for seed in range(4):
        client.send(str(seed), prompt(seed, 50), 90)
    client.work()
    assert client.head.scheduler.retractions > 0
    for seed in range(4):
        uncached.check(prompt(seed, 50), client.output(str(seed)))
    assert idle_problems(client.head.hierarchy) == []


Scenario = Callable[[Model, int, Uncached], None]


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("scenario", [device_hit, host_hit, store_hit, chunked, mixed_batch, retracted])
def test_tokens_are_those_of_an_uncached_run(model: Model, scenario: Scenario, page_size: int) -> None:
    uncached = Uncached(model, page_size)
    scenario(model, page_size, uncached)
    assert uncached.ties <= 2


def test_the_check_itself_can_fail(model: Model) -> None:
    uncached, tokens = Uncached(model, 16), prompt(1, 40)
    answer, margins = uncached.answer(tokens, 8)
    position = max(range(8), key=lambda i: margins[i])
    answer[position] = (answer[position] + 1) % tiny_models.VOCAB
    with pytest.raises(AssertionError, match="no tie"):
        uncached.check(tokens, answer)


def test_a_wrong_page_changes_the_answer(model: Model) -> None:
    client, tokens = engine(model, 16), prompt(1, 150)
    right, _ = ask(client, "a", tokens)
    for memory in (*client.pool.keys, *client.pool.values):
        memory += 1.0
    wrong, usage = ask(client, "b", tokens)
    assert usage.device > 0 and wrong != right
