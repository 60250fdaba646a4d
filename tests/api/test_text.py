import asyncio

import pytest
from api_fakes import card, chatml, tiny_core, tiny_text
from tokenizers import Tokenizer, models, pre_tokenizers

from stratakv.api.text import TemplateFailure, Text, TextCodec, TokenizerUnavailable

pytestmark = pytest.mark.anyio


def test_cuts_are_the_ends_of_special_tokens():
    rendered = chatml([{"role": "user", "content": "hi"}], True)
    encoded = tiny_text().encode(rendered)
    special = [rendered[: cut.characters] for cut in encoded.cuts]
    assert [text.rsplit("<", 1)[1] for text in special] == ["|im_start|>", "|im_end|>", "|im_start|>"]
    for cut in encoded.cuts:
        assert tiny_text().decode(encoded.ids[: cut.tokens]) == rendered[: cut.characters]


def test_text_after_a_cut_is_encoded_as_in_the_whole():
    rendered = chatml([{"role": "user", "content": "hi, wörld"}], True)
    encoded = tiny_text().encode(rendered)
    for cut in encoded.cuts:
        assert tiny_text().may_cut(rendered, cut.characters)
        rest = tiny_text().encode_after(rendered[cut.characters :])
        assert encoded.ids[: cut.tokens] + rest.ids == encoded.ids


def test_a_tokenizer_that_puts_spaces_in_front_is_cut_at_special_tokens_only():
    core = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "?": 2}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.add_special_tokens(["<s>"])
    text = Text(core)
    assert not text.may_cut("a b", 1)
    assert text.may_cut("a<s>b", 1) and text.may_cut("a<s>b", 4) and text.may_cut("a b", 3)
    assert tiny_text().may_cut("a b", 1)


def test_lead_is_what_the_tokenizer_puts_in_front():
    assert Text(tiny_core(lead=True)).lead.tolist() == [0]
    assert tiny_text().lead.tolist() == []


def test_a_model_without_template_says_so():
    with pytest.raises(TemplateFailure, match="use /v1/completions"):
        Text(tiny_core()).render([{"role": "user", "content": "hi"}])


async def test_the_event_loop_runs_while_a_long_text_is_encoded():
    task = asyncio.create_task(asyncio.to_thread(tiny_text().encode, "the quick brown fox " * 20_000))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len((await task).ids) > 20_000 and turns > 20


async def test_the_tokenizer_is_loaded_once():
    paths: list[str] = []

    def load(path: str) -> Text:
        paths.append(path)
        return tiny_text()

    codec = TextCodec(load)
    assert not codec.ready(card())
    found = await asyncio.gather(*(codec.text(card(), 5) for _ in range(4)))
    assert found == [tiny_text()] * 4 and paths == [card().path]
    assert codec.ready(card())


async def test_a_tokenizer_that_cannot_be_loaded_is_tried_again():
    tries: list[str] = []

    def load(path: str) -> Text:
        tries.append(path)
        if len(tries) == 1:
            raise OSError(f"{path} is gone")
        return tiny_text()

    codec = TextCodec(load)
    with pytest.raises(TokenizerUnavailable) as caught:
        await codec.text(card(), 5)
    assert card().path not in str(caught.value)
    assert await codec.text(card(), 5) is tiny_text()


async def test_waiting_for_the_tokenizer_has_a_deadline():
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def load(path: str) -> Text:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        return tiny_text()

    codec = TextCodec(load)
    with pytest.raises(TokenizerUnavailable, match="still being loaded"):
        await codec.text(card(), 0.01)
    release.set()
    assert await codec.text(card(), 5) is tiny_text()


async def test_a_deadline_of_one_does_not_end_the_load_for_others():
    codec = TextCodec(lambda path: tiny_text())
    waiting = asyncio.create_task(codec.text(card(), 5))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await codec.text(card(), 5) is tiny_text()
