from api_fakes import EOS, tiny_core, tiny_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stratakv.api.detokenizer import Detokenizer, Transcript

_VOCABULARY = tiny_core().get_vocab_size()
_tokens = st.lists(st.integers(0, _VOCABULARY - 1), max_size=60)


def _pieces(prompt: list[int], tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tiny_core(), prompt)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@given(_tokens)
@settings(max_examples=300)
def test_the_pieces_are_the_text_of_all_tokens(tokens: list[int]):
    prompt = tiny_text().encode("<|im_start|>assistant\n").ids.tolist()
    assert "".join(_pieces(prompt, tokens)) == tiny_core().decode(tokens, skip_special_tokens=True)


@given(_tokens, st.integers(0, 400))
def test_whole_tokens_decode_to_their_text(tokens: list[int], length: int):
    transcript = Transcript(tiny_text().detokenizer([]))
    text = "".join(transcript.push(token) for token in tokens) + transcript.end()
    whole = transcript.whole_tokens(length)
    assert whole.characters <= max(length, 0) and whole.tokens <= len(tokens)
    said = tiny_core().decode(tokens[: whole.tokens], skip_special_tokens=True)
    assert said == text[: whole.characters] == transcript.text(whole.characters)


def test_characters_are_never_split():
    party = tiny_core().encode("a🎉b", add_special_tokens=False).ids
    pieces = _pieces([], party)
    assert len(party) > 3 and "".join(pieces) == "a🎉b"
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_incomplete_character_shows_at_the_end_only():
    party = tiny_core().encode("a🎉", add_special_tokens=False).ids
    assert _pieces([], party[:-1])[-1] == "\ufffd"


def test_a_long_run_without_text_is_not_decoded_from_its_start():
    """Hidden tokens and broken bytes go through `flush` now and then; the text stays the same."""
    broken = tiny_core().encode("🎉", add_special_tokens=False).ids[0]
    text = "".join(_pieces([], [EOS] * 500 + [broken] * 500))
    assert text == "\ufffd" * 500


def test_a_prompt_that_ends_within_a_character_is_not_repeated():
    party = tiny_core().encode("ab🎉", add_special_tokens=False).ids
    text = "".join(_pieces(party[:-1], [party[-1], *tiny_core().encode("x", add_special_tokens=False).ids]))
    assert text.strip("\ufffd") == "x"


def test_a_space_in_front_survives_where_decoders_strip_it():
    core = Tokenizer(models.WordLevel({"▁say": 0, "▁hello": 1, "▁world": 2}, unk_token="▁say"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    assert core.decode([1, 2]) == "hello world"
    detokenizer = Detokenizer(core, [0])
    assert [detokenizer.push(1), detokenizer.push(2), detokenizer.flush()] == [" hello", " world", ""]


def test_byte_fallback_that_changes_its_mind_loses_nothing():
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    core = Tokenizer(models.BPE({name: at for at, name in enumerate([*names, "b"])}, [], byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    detokenizer = Detokenizer(core, [])
    # A lone A, then a byte that makes the run of bytes no text at all: what was sent cannot be taken back.
    text = "".join(detokenizer.push(token) for token in (0x41, 0xFF, 256)) + detokenizer.flush()
    assert text.startswith("A") and text.endswith("b")
