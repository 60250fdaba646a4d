"""Greedy tokens with the cache on equal those with it off, and so do the logits, on real networks of every family.

The quick set has one cell per family; `make test-full` a pairwise covering array over families, tiers, write and
prefetch policies, page sizes, tensor-parallel sizes, fixed pools and a unified buffer, and how the batch is made up.
What each cell was really served from is printed with it.
"""

from functools import lru_cache
from pathlib import Path

import pytest
import tiny_models
from covering import Cell, missing, pairwise
from identity import HISTORY, OUTPUT, Recording, prompt, run_cell
from replica import Replica
from tiny_families import RECURRENT
from uncached import Uncached

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.model import Model
from stratakv.cluster.settings import HeartbeatSettings
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.stores.settings import StoreSettings

SPLIT = ("llama", "qwen3", "qwen3_moe")
"""Families that can be split over ranks."""

FACTORS = {
    "family": list(tiny_models.FAMILIES),
    "prefetch": PREFETCH_POLICIES.names(),
    "source": ["device", "host", "store"],
    "write": WRITE_POLICIES.names(),
    "mode": ["chunked", "mixed", "retracted"],
    "page": [16, 64],
    "ranks": [1, 2],
    "memory": ["fixed", "unified"],
}


def allowed(cell: Cell) -> bool:
    if cell["memory"] == "unified" and cell["family"] not in RECURRENT:
        return False
    return cell["ranks"] == 1 or cell["family"] in SPLIT


MATRIX = pairwise(FACTORS, allowed)
QUICK = list({cell["family"]: cell for cell in reversed(MATRIX) if cell["ranks"] == 1}.values())


def name(cell: Cell) -> str:
    return "-".join(str(value) for value in cell.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("identity")


@lru_cache(maxsize=1)
def load(folder: Path, family: str) -> Model:
    directory = folder / family
    if not directory.exists():
        tiny_models.write_model(directory, family)
    return Model.load(ModelSettings(path=str(directory), device="cpu"))


def check(folder: Path, cell: Cell, tmp_path: Path) -> None:
    model = load(folder, str(cell["family"]))
    uncached = Uncached(model, int(str(cell["page"])))
    if cell["ranks"] == 1:
        source = run_cell(model, cell, uncached)
    else:
        source = run_split(folder / str(cell["family"]), cell, uncached, tmp_path)
    print(f"{name(cell)}: served from {source}, {uncached.ties} ties")
    assert uncached.ties <= 2


def run_split(directory: Path, cell: Cell, uncached: Uncached, tmp_path: Path) -> str:
    """A cell on several ranks, in processes of their own, whose tokens alone can be compared. The device holds two
    histories, unless it is to serve this one; for the store a second generation comes and asks."""
    page, mode, source = int(str(cell["page"])), cell["mode"], cell["source"]
    store = StoreSettings(
        url=(tmp_path / "store").as_uri(), prefetch_threshold=page, prefetch_policy=str(cell["prefetch"])
    )
    options = {
        "store": store,
        "cache": {
            "page_size": page, "write_policy": cell["write"], "host_memory": 2**24,
            "device_memory": memory_of(directory, page, 6 * HISTORY if source == "device" else 2 * HISTORY),
        },
        "heartbeat": HeartbeatSettings(interval=0.5, timeout=60),
        "scheduler": {"token_budget": 23 if mode == "chunked" else 64, "max_running": 4},
    }  # fmt: skip
    history, others = prompt(1, HISTORY), [prompt(50 + n, 50) for n in range(3)]
    with Replica(directory, int(str(cell["ranks"])), tmp_path, **options) as replica:
        for seed in (1, 1) if source == "device" else (1, 1, 2, 3, 4):
            uncached.check(prompt(seed, HISTORY), replica.ask(prompt(seed, HISTORY), OUTPUT).tokens)
        if source != "store":
            return finish(replica, cell, uncached, history, others)
        replica.check()
        replica.stop()
    with Replica(directory, int(str(cell["ranks"])), tmp_path, generation=2, **options) as replica:
        return finish(replica, cell, uncached, history, others)


def memory_of(directory: Path, page: int, tokens: int) -> int:
    """Bytes of a rank's share of so many tokens, and some: by the whole model's shapes, halved."""
    model = load(directory.parent, directory.name)
    per_token = sum(shape.elements_per_token() for shape in model.shapes.full) * 4 // 2
    return per_token * page * (-(-tokens // page) + 2)


def finish(
    replica: Replica, cell: Cell, uncached: Uncached, history: list[int], others: list[list[int]]
) -> str:
    """The history comes back, alone or in a batch, and says what it says uncached."""
    prompts = [history] if cell["mode"] == "chunked" else [history, *others]
    count = 60 if cell["mode"] == "retracted" else OUTPUT
    answers = replica.ask_all(prompts, count)
    for tokens, answer in zip(prompts, answers, strict=True):
        uncached.check(tokens, answer.tokens)
    replica.check()
    replica.stop()
    usage = answers[0].usage
    parts = {"device": usage.device, "host": usage.host, "store": usage.store}
    source = str(cell["source"])
    if source == "store" and not usage.store and usage.misses.get("cut by policy"):
        return "computed (cut by policy)"
    assert parts[source] > 0, usage
    return source


@pytest.mark.parametrize("cell", QUICK, ids=name)
def test_tokens_and_logits_are_those_of_an_uncached_run(folder: Path, cell: Cell, tmp_path: Path) -> None:
    check(folder, cell, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("cell", [cell for cell in MATRIX if cell not in QUICK], ids=name)
def test_so_they_are_in_every_pair_of_circumstances(folder: Path, cell: Cell, tmp_path: Path) -> None:
    check(folder, cell, tmp_path)


def test_the_matrix_covers_every_pair() -> None:
    assert missing(MATRIX, FACTORS, allowed) == 0
    assert {cell["family"] for cell in QUICK} == set(tiny_models.FAMILIES)


def test_the_check_itself_can_fail(folder: Path) -> None:
    uncached, tokens = Uncached(load(folder, "llama"), 16), prompt(1, 40)
    answer = uncached.answer(tokens, 6)
    logits = uncached.logits(tokens, answer)
    margins = [float(row.topk(2).values.diff().abs()) for row in logits]
    position = max(range(6), key=margins.__getitem__)
    with pytest.raises(AssertionError, match="logits differ"):
        uncached.check_logits(tokens, answer, [*logits[:-1], logits[-1] * 1.01])
    answer[position] = (answer[position] + 1) % tiny_models.VOCAB
    with pytest.raises(AssertionError, match="no tie"):
        uncached.check(tokens, answer)


@pytest.mark.parametrize("family", ["llama", "gemma3", "falcon_h1", "deepseek_v3"])
def test_a_wrong_byte_changes_the_answer(folder: Path, family: str) -> None:
    """Each kind of state in turn: what was served before is spoilt where it lies, and then reused."""
    model, tokens = load(folder, family), prompt(1, HISTORY)
    client = Recording(model, page_size=16, device=64, host=0, token_budget=512, max_running=6)
    client.ask("right", tokens)
    memory = client.memory
    pools = [pool for pool in (memory.sliding, memory.full) if pool is not None]
    spoilt = pools[0].keys if memory.checkpoints is None else [memory.checkpoints._memory.view(-1)]
    for tensor in spoilt:
        tensor += 1
    usage = client.ask("wrong", tokens)
    assert usage.device > 0
    difference = (client.logits["right"][0] - client.logits["wrong"][0]).abs().max()
    assert difference > 100 * 1e-4 * client.logits["right"][0].abs().max()
