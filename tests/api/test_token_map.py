"""The guarantee of the token map: the next turn starts with exactly the tokens of the last, however they came about."""

import asyncio
from array import array
from typing import Any

import pytest
from api_fakes import EOS, FakeBackend, card, deltas, get, make_app, post, prompt_ids, tiny_core, tiny_text
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.api.prompts import Prompt, Prompts, Tenant
from stratakv.api.token_map import STRIDE, Mark, TokenMap, TokenMaps, prefix_digests
from stratakv.cluster.messages import FinishReason, Generate
from stratakv.cluster.metrics import MapOutcome

_VOCABULARY = tiny_core().get_vocab_size()
_LARGE = {"max_total_tokens": 100_000, "context_length": 100_000}
_answers = st.tuples(
    st.lists(st.integers(0, _VOCABULARY - 1), min_size=1, max_size=12),
    st.sampled_from(["length", "eos", "stop string"]),
    st.integers(1, 3),
    st.text(max_size=8),
)


class _Turns:
    """An app whose backend says one prepared list of tokens after the other."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.run = runner.run
        self.tokens: list[int] = []
        self.finish = FinishReason.LENGTH
        self.per_step = 1
        self.backend = FakeBackend(self._script, served=card(**_LARGE))
        self.app: FastAPI = make_app(self.backend)

    def _script(self, request: Generate) -> list[Any]:
        return deltas(request, self.tokens, self.finish, self.per_step)

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        body = {"model": "tiny", "return_token_ids": True, **body}
        response = self.run(post(self.app, path, body))
        assert response.status_code == 200, response.text
        return response.json()


def _text(tokens: list[int]) -> str:
    return tiny_core().decode(tokens, skip_special_tokens=True)


def _prepare(turns: _Turns, tokens: list[int], ending: str, per_step: int) -> dict[str, Any]:
    """Make the backend say `tokens`, ended in this way; what the request must hold for it."""
    turns.per_step = per_step
    turns.tokens, turns.finish = tokens, FinishReason.LENGTH
    if ending == "eos":
        turns.tokens, turns.finish = [*tokens, EOS], FinishReason.STOP
    text = _text(tokens)
    return {"stop": [text[len(text) // 2 :][:3]]} if ending == "stop string" and text else {}


def _kept(turns: _Turns, ending: str, sent: str) -> list[int]:
    """The output tokens that the next prompt must go on with, at least."""
    if not sent:
        return []
    said = turns.tokens[:-1] if ending == "eos" else turns.tokens
    if ending != "stop string" or sent == _text(said):
        return said
    # After a stop string only the tokens whose text was sent, up to the last that shows.
    whole = [count for count in range(len(said) + 1) if sent.startswith(_text(said[:count]))]
    said = said[: max(whole)]
    while said and (_text(said).endswith("\ufffd") or said[-1] in tiny_text().special_ids):
        said = said[:-1]
    return said


@given(st.lists(_answers, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_chat_goes_on_with_the_tokens_it_was_made_of(runner, answers):
    turns = _Turns(runner)
    messages: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
    expected: list[int] = []
    for tokens, ending, per_step, question in answers:
        extra = _prepare(turns, tokens, ending, per_step)
        answer = turns.ask("/v1/chat/completions", {"messages": messages, **extra})
        ids = prompt_ids(turns.backend.requests[-1])
        assert ids == answer["prompt_token_ids"]
        assert ids[: len(expected)] == expected
        content = answer["choices"][0]["message"]["content"]
        expected = ids + _kept(turns, ending, content)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]
    turns.ask("/v1/chat/completions", {"messages": messages})
    assert prompt_ids(turns.backend.requests[-1])[: len(expected)] == expected


@given(st.lists(_answers, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_text_goes_on_with_the_tokens_it_was_made_of(runner, answers):
    turns = _Turns(runner)
    text = "Once upon a time"
    expected: list[int] = []
    for tokens, ending, per_step, question in answers:
        extra = _prepare(turns, tokens, ending, per_step)
        answer = turns.ask("/v1/completions", {"prompt": text, **extra})
        ids = prompt_ids(turns.backend.requests[-1])
        assert ids[: len(expected)] == expected
        content = answer["choices"][0]["text"]
        expected = ids + _kept(turns, ending, content)
        text += content + question
    turns.ask("/v1/completions", {"prompt": text})
    assert prompt_ids(turns.backend.requests[-1])[: len(expected)] == expected


@pytest.mark.parametrize("lead", [False, True])
def test_text_completions_keep_what_the_tokenizer_puts_in_front(runner: asyncio.Runner, lead: bool):
    from stratakv.api.text import Text

    text = Text(tiny_core(lead))
    prompts = Prompts(TokenMaps(10**6, 10**6))

    async def run() -> tuple[Prompt, Prompt]:
        first = await prompts.completion(text, "hello", Tenant())
        prompts.remember(first, [40, 41], _text([40, 41]))
        return first, await prompts.completion(text, "hello" + _text([40, 41]) + " world", Tenant())

    first, second = runner.run(run())
    assert second.ids[: len(first.ids) + 2].tolist() == [*first.ids, 40, 41]
    assert (first.ids[0] == 0) is lead
    assert second.ids.tolist().count(0) == int(lead)


def test_text_that_spells_a_special_token_stays_what_it_was(runner: asyncio.Runner):
    """A model that writes `<|im_end|>` in plain letters has not ended its turn, and does not in the next prompt."""
    turns = _Turns(runner)
    turns.tokens = [token for letter in "<|im_end|>" for token in tiny_text().encode(letter).ids]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    answer = turns.ask("/v1/chat/completions", body)
    content = answer["choices"][0]["message"]["content"]
    assert content == "<|im_end|>"
    body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
    turns.ask("/v1/chat/completions", body)
    ids = prompt_ids(turns.backend.requests[-1])
    assert (
        ids[: len(answer["prompt_token_ids"]) + len(turns.tokens)]
        == answer["prompt_token_ids"] + turns.tokens
    )
    assert ids.count(EOS) == 3


def test_a_conversation_that_parts_keeps_its_common_tokens(runner: asyncio.Runner):
    """After an edited question the answers before it keep their tokens, cut at a special token."""
    turns = _Turns(runner)
    turns.tokens, turns.finish = (
        [*[token for letter in "hello" for token in tiny_text().encode(letter).ids], EOS],
        (FinishReason.STOP),
    )
    messages = [{"role": "user", "content": "hi"}]
    first = turns.ask("/v1/chat/completions", {"messages": messages})
    common = first["prompt_token_ids"] + turns.tokens
    messages.append({"role": "assistant", "content": "hello"})
    turns.ask("/v1/chat/completions", {"messages": [*messages, {"role": "user", "content": "one"}]})
    turns.ask("/v1/chat/completions", {"messages": [*messages, {"role": "user", "content": "another"}]})
    assert prompt_ids(turns.backend.requests[-1])[: len(common)] == common
    metrics = turns.run(get(turns.app, "/metrics")).text
    assert 'stratakv_token_map_lookups_total{outcome="miss"} 1.0' in metrics


def test_tenants_do_not_share(runner: asyncio.Runner):
    turns = _Turns(runner)
    turns.tokens = [token for letter in "hello" for token in tiny_text().encode(letter).ids]
    answer = turns.ask("/v1/completions", {"prompt": "say ", "cache_salt": "a"})
    text = "say " + answer["choices"][0]["text"] + "!"
    turns.ask("/v1/completions", {"prompt": text, "cache_salt": "b"})
    assert prompt_ids(turns.backend.requests[-1]) == tiny_text().encode(text).ids.tolist()
    turns.ask("/v1/completions", {"prompt": text, "extra_key": "a"})
    assert prompt_ids(turns.backend.requests[-1]) == tiny_text().encode(text).ids.tolist()
    turns.ask("/v1/completions", {"prompt": text, "cache_salt": "a"})
    assert prompt_ids(turns.backend.requests[-1]) != tiny_text().encode(text).ids.tolist()


def test_a_prompt_sent_again_has_the_same_tokens(runner: asyncio.Runner):
    turns = _Turns(runner)
    turns.tokens, turns.finish = [EOS, EOS], FinishReason.LENGTH
    body = {"prompt": "again", "ignore_eos": True}
    first = turns.ask("/v1/completions", body)["choices"][0]["prompt_token_ids"]
    assert turns.ask("/v1/completions", body)["choices"][0]["prompt_token_ids"] == first


# The map itself, against a dictionary from text to ids


def _always(at: int) -> bool:
    return True


def _store(known: TokenMap, text: str, ids: list[int]) -> None:
    digests = prefix_digests(text)
    base = known.lookup(text, digests, _always)
    start = base.characters if base else 0
    if len(text) > start:
        ids = [*(base.ids if base else ()), *ids]
        known.store(text, digests, array("I", ids), [Mark(len(text), len(ids), MapOutcome.END)], base)


_texts = st.tuples(st.text("ab", max_size=6), st.sampled_from([0, 1, STRIDE - 1, STRIDE, 3 * STRIDE]))


@given(st.lists(_texts, max_size=20))
def test_lookup_finds_the_longest_known_prefix(parts: list[tuple[str, int]]):
    known = TokenMap(10**9)
    stored: dict[str, list[int]] = {}
    for number, (ending, length) in enumerate(parts):
        text = "x" * length + ending
        longest = max((other for other in stored if text.startswith(other)), key=len, default="")
        found = known.lookup(text, prefix_digests(text), _always)
        assert (found.characters if found else 0) == len(longest)
        assert (found.ids.tolist() if found else []) == stored.get(longest, [])
        if len(text) > len(longest):
            stored[text] = [*stored.get(longest, []), number]
            _store(known, text, [number])


@given(st.lists(st.text("ab", min_size=1, max_size=12), max_size=40), st.integers(0, 8))
def test_the_map_is_bounded_and_forgets_the_oldest_first(texts: list[str], room: int):
    known = TokenMap(room * 520)
    for number, text in enumerate(texts):
        _store(known, text, [number])
        assert known.bytes <= room * 520
        assert known.bytes == sum(node.cost() for node in known._order)
        assert (known.bytes == 0) == (len(known) == 0)
        reachable = {node for bucket in known._buckets.values() for node in bucket.values()}
        assert reachable <= set(known._order) and all(known._buckets.values())
        for node in known._order:
            assert node.parent is None or node.parent in known._order
        if room > 3 and len(text) < 3:
            found = known.lookup(text, prefix_digests(text), _always)
            assert found is not None and found.characters == len(text)


def test_the_newest_tokens_of_a_text_win_and_older_ones_stay_for_what_builds_on_them():
    known = TokenMap(10**6)
    digests = prefix_digests("abcd")
    for ids, text in (([1], "ab"), ([1, 2], "abcd"), ([9], "ab")):
        known.store(text, digests, array("I", ids), [Mark(len(text), len(ids), MapOutcome.END)], None)
    assert known.lookup("abc", prefix_digests("abc"), _always).ids.tolist() == [9]
    assert known.lookup("abcde", prefix_digests("abcde"), _always).ids.tolist() == [1, 2]


def test_what_was_forgotten_meanwhile_is_stored_whole():
    known = TokenMap(2 * 520)
    _store(known, "ab", [1])
    base = known.lookup("abcd", prefix_digests("abcd"), _always)
    for text in ("x", "y", "z"):
        _store(known, text, [5])
    known.store("abcd", prefix_digests("abcd"), array("I", [1, 2]), [Mark(4, 2, MapOutcome.END)], base)
    assert known.lookup("abcde", prefix_digests("abcde"), _always).ids.tolist() == [1, 2]
    assert known.lookup("abc", prefix_digests("abc"), _always) is None


def test_whole_tenants_go_when_all_together_are_too_large():
    maps = TokenMaps(max_bytes=5000, tenant_bytes=2000)
    digests = prefix_digests("ab")
    for tenant in range(20):
        maps.store(tenant, "ab", digests, array("I", [tenant]), [Mark(2, 1, MapOutcome.END)], None)
        assert maps.bytes <= 5000
    assert maps.lookup(19, "ab", digests, _always).ids.tolist() == [19]
    assert maps.lookup(0, "ab", digests, _always) is None


def test_a_map_of_no_size_knows_nothing():
    maps = TokenMaps(0, 10**6)
    digests = prefix_digests("ab")
    maps.store("a", "ab", digests, array("I", [1]), [Mark(2, 1, MapOutcome.END)], None)
    assert maps.bytes == 0 and maps.lookup("a", "ab", digests, _always) is None


def test_digests_go_on_from_those_of_a_prefix():
    text = "añ日" * STRIDE
    for length in (0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 3 * STRIDE):
        assert prefix_digests(text, prefix_digests(text[:length])) == prefix_digests(text)
