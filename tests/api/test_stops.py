from hypothesis import given
from hypothesis import strategies as st

from stratakv.api.stops import StopMatcher

_pieces = st.lists(st.text("ab", max_size=4), max_size=12)
_stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def _cut(text: str, stops: list[str]) -> str:
    """The specification, character by character: a text ends as soon as a stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@given(_pieces, _stops)
def test_what_is_let_through_is_the_text_before_the_first_stop(pieces: list[str], stops: list[str]):
    matcher = StopMatcher(stops)
    sent, arrived = "", ""
    for piece in pieces:
        arrived += piece
        sent += matcher.feed(piece)
        # Never a part of a stop string that later text completes.
        assert _cut("".join(pieces), stops).startswith(sent)
        if matcher.matched is not None:
            break
    if matcher.matched is None:
        sent += matcher.flush()
    assert sent == _cut(arrived, stops)
    assert (matcher.matched is not None) == any(stop in arrived for stop in stops)


@given(_pieces)
def test_nothing_is_held_back_without_need(pieces: list[str]):
    matcher = StopMatcher(["c"])
    assert [matcher.feed(piece) for piece in pieces] == pieces


def test_text_that_cannot_become_a_stop_string_is_let_go():
    matcher = StopMatcher(["END"])
    assert [matcher.feed(piece) for piece in ["aE", "N", "x", "EN"]] == ["a", "", "ENx", ""]
    assert matcher.flush() == "EN"


def test_nothing_follows_a_match():
    matcher = StopMatcher(["bc", "abc"])
    assert matcher.feed("xabc") == "x"
    assert matcher.matched == "abc"
    assert matcher.feed("more") == "" and matcher.flush() == ""
