"""Every family that is served computes over our memory what transformers computes by itself.

Logits are compared after every step: in odd chunks, decoding, in mixed batches, and after everything that is cached has
been through checkpoints and host blocks to other slots. A control for each kind of state shows that it matters.
"""

from pathlib import Path

import pytest
import tiny_models
import torch
from model_session import PAGE, Session, plain_logits, plain_model, prompt
from tiny_families import FAMILIES, RECURRENT, SLIDING, WIDE_WINDOW

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker import model as model_module
from stratakv.actors.worker.model import Model
from stratakv.kernels.attention import paged_attention
from stratakv.kernels.shapes import LayerShape

ROUNDING = 1e-4
"""The largest relative difference of logits in float32."""


class Family:
    """A tiny model, and the same as transformers runs it."""

    def __init__(self, name: str, path: Path):
        tiny_models.write_model(path, name)
        self.name = name
        self.model = Model.load(ModelSettings(path=str(path), device="cpu"))
        self.plain = plain_model(path)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Families by name, made when first asked for."""
    root, made = tmp_path_factory.mktemp("families"), {}

    def family(name: str) -> Family:
        if name not in made:
            made[name] = Family(name, root / name)
        return made[name]

    return family


def difference(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours - expected).abs().max() / expected.abs().max())


class Check:
    """Requests whose every step is compared with transformers."""

    def __init__(self, family: Family, *, unified: bool = False, **lengths: int):
        self.session = Session(family.model, unified=unified)
        self.texts = {name: prompt(length, seed) for seed, (name, length) in enumerate(lengths.items())}
        self.expected = {name: plain_logits(family.plain, tokens) for name, tokens in self.texts.items()}

    def step(self, **cuts: tuple[int, int]) -> float:
        """One forward over these parts of the requests; how far the logits are off."""
        rows = [self.session.row(name, self.texts[name], start, end) for name, (start, end) in cuts.items()]
        logits = self.session.step(rows)
        right = torch.stack([self.expected[name][end - 1] for name, (_, end) in cuts.items()])
        return difference(logits, right)


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_chunks_decodes_and_mixed_batches(families, name):
    check = Check(families(name), a=45, b=20, c=61)
    assert check.step(a=(0, 2)) < ROUNDING
    assert check.step(c=(0, 30), a=(2, 3), b=(0, 1)) < ROUNDING
    assert check.step(a=(3, 19), b=(1, 2)) < ROUNDING
    assert check.step(b=(2, 3), c=(30, 31), a=(19, 20)) < ROUNDING
    assert check.step(a=(20, 27), c=(31, 32), b=(3, 20)) < ROUNDING
    assert check.step(a=(27, 28), c=(32, 61)) < ROUNDING
    for position in range(28, 45):
        assert check.step(a=(position, position + 1)) < ROUNDING


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_cached_comes_back_through_the_host(families, name):
    """Before a chunk, before a decode and again, while others keep computing in the same memory."""
    check = Check(families(name), a=45, b=61)
    check.step(a=(0, 16), b=(0, 7))
    check.session.through_host("a", 16)
    assert check.step(b=(7, 8), a=(16, 24)) < ROUNDING
    check.session.through_host("a", 24)
    assert check.step(a=(24, 25), b=(8, 9)) < ROUNDING
    assert check.step(a=(25, 40), b=(9, 61)) < ROUNDING
    check.session.through_host("a", 40)
    assert check.step(a=(40, 45)) < ROUNDING


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_two_requests_continue_from_one_checkpoint(families, name, unified):
    """The checkpoint stays as it is while both go on from copies of it."""
    check = Check(families(name), unified=unified, a=45)
    session = check.session
    check.step(a=(0, 24))
    place = session.checkpoint("a")
    assert check.step(a=(24, 45)) < ROUNDING
    for again in ("b", "c"):
        session.pages[again] = session.pages["a"][: 24 // PAGE]
        session.states[again] = session.free["states"].pop()
        session.memory.checkpoints.restore(session.memory.states, session.states[again], place)
        check.texts[again], check.expected[again] = check.texts["a"], check.expected["a"]
    assert check.step(b=(24, 30), c=(24, 25)) < ROUNDING
    assert check.step(b=(30, 31), c=(25, 45)) < ROUNDING


@pytest.mark.parametrize("name", RECURRENT)
def test_a_zeroed_state_changes_the_logits(families, name):
    check = Check(families(name), a=45)
    check.step(a=(0, 24))
    check.session.memory.states.clear([check.session.states["a"]])
    assert check.step(a=(24, 32)) > 20 * ROUNDING


@pytest.mark.parametrize("name", [*SLIDING, "mistral"])
def test_forgetting_the_window_changes_the_logits(families, name, monkeypatch):
    """`gpt_oss` and the others are right only with their window, which the prompt crosses."""
    family = families(name)

    def without_window(*args, sliding_window=None, **kwargs):
        return paged_attention(*args, **kwargs)

    monkeypatch.setattr(model_module.attention, "paged_attention", without_window)
    model_module.attention.register()
    try:
        session, tokens = Session(family.model), prompt(WIDE_WINDOW + 20)
        logits = session.step([session.row("a", tokens, 0, len(tokens))])
    finally:
        monkeypatch.undo()
        model_module.attention.register()
    assert difference(logits, plain_logits(family.plain, tokens)[-1:]) > 100 * ROUNDING


@pytest.mark.parametrize("name", SLIDING)
def test_a_wrong_page_of_the_window_changes_the_logits(families, name):
    check = Check(families(name), a=45)
    check.step(a=(0, 24))
    for values in check.session.memory.sliding.values:
        values[list(check.session.windows["a"].values())] += 1.0
    assert check.step(a=(24, 25)) > 10 * ROUNDING


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_known_of_its_state(families, name):
    shapes = families(name).model.shapes
    assert bool(shapes.states) == (name in RECURRENT)
    assert bool(shapes.sliding) == (name in SLIDING)
    assert shapes.window == (FAMILIES[name]().sliding_window if name in SLIDING else None)
    assert shapes.latent == (name == "deepseek_v3")
    assert len(shapes.places) == len(shapes.full) + len(shapes.sliding)


def test_latents_are_cached_compressed(families):
    """24 + 8 elements a token and layer, where K and V of four heads would be 4 * (24 + 16)."""
    assert families("deepseek_v3").model.shapes.full == (LayerShape(1, 32, 0),) * 3


def test_states_of_a_bfloat16_model_keep_their_own_precision(families, tmp_path):
    path = tiny_models.write_model(tmp_path, "nemotron_h")
    model = Model.load(ModelSettings(path=str(path), device="cpu", dtype="bfloat16"))
    kinds = {state.name: state.dtype for state in model.shapes.states}
    assert kinds["conv.0"] == "bfloat16"
    session, tokens = Session(model), prompt(30)
    session.step([session.row("a", tokens, 0, 24)])
    session.through_host("a", 24)
    logits = session.step([session.row("a", tokens, 24, 30)])
    expected = plain_logits(families("nemotron_h").plain, tokens)[-1:]
    assert difference(logits, expected) < 0.1
