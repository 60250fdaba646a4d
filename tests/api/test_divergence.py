"""The guess at why two prompts part: one case of each cause, and what must not be taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratakv.api.divergence import REMEDIES, Cause, Sides, guess

UUIDS = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "9f2504e0-4f89-41d3-9a0c-0305e82c3302"


def tools(*names):
    return "[" + ", ".join(f'{{"name": "{name}", "description": "{name}"}}' for name in names) + "]"


def part(one: str, other: str, in_head: bool = False) -> Cause:
    """The guess for two whole texts, which part at their first character that differs."""
    at = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return guess(Sides(one[:at], one[at:], other[at:]), in_head)


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ("Now: 2026-03-04T10:00:00Z go", "Now: 2026-03-04T10:00:07Z go", Cause.DATE_OR_TIME),
        ("Today is 12 May 2026.", "Today is 13 May 2026.", Cause.DATE_OR_TIME),
        ("Today is Monday, hello", "Today is Tuesday, hello", Cause.DATE_OR_TIME),
        ("It is May 3, 2026 now", "It is June 3, 2026 now", Cause.DATE_OR_TIME),
        ("at 9:41 AM exactly", "at 9:42 AM exactly", Cause.DATE_OR_TIME),
        ("on 04.03.2026 we", "on 05.03.2026 we", Cause.DATE_OR_TIME),
        ("ts=1772618400 x", "ts=1772618999 x", Cause.DATE_OR_TIME),
        (f"session {UUIDS[0]} begins", f"session {UUIDS[1]} begins", Cause.IDENTIFIER),
        ("trace 4bf92f3577b34da6 on", "trace 4bf92f3577b34da7 on", Cause.IDENTIFIER),
        ("call_a8Kd02mQzX1 done", "call_a8Kd02mQzY9 done", Cause.IDENTIFIER),
        ("you have 17 messages", "you have 18 messages", Cause.NUMBER),
        ("you have 17 messages", "you have 174 messages", Cause.NUMBER),
        (tools("read", "write", "list"), tools("write", "read", "list"), Cause.REORDERED),
        (tools("get_1", "get_2", "run"), tools("get_2", "get_1", "run"), Cause.REORDERED),
        ("Rules:\n- be kind\n- be brief\nGo", "Rules:\n- be brief\n- be kind\nGo", Cause.REORDERED),
        ("You are a pirate.", "You are a poet.", Cause.OTHER_TEXT),
        ("tools: " + tools("read", "write"), "tools: " + tools("search", "fetch"), Cause.OTHER_TEXT),
        ("version 3 is good", "version 3 was bad", Cause.OTHER_TEXT),
        ("born 12 May, 1999 in", "born unknown, 1999 in", Cause.OTHER_TEXT),
    ],
)
def test_causes(one, other, cause):
    assert part(one, other) is cause


def test_before_the_first_message_of_a_user_it_is_the_system_prompt_unless_something_better_is_known():
    assert part("You are a pirate.", "You are a poet.", in_head=True) is Cause.SYSTEM_PROMPT
    assert part("Today is Monday, ho", "Today is Friday, ho", in_head=True) is Cause.DATE_OR_TIME


def test_equal_text_in_other_tokens():
    same = "and then the answer went on as before"
    assert guess(Sides("so ", same, same[:-3]), in_head=False) is Cause.TOKENISED


@given(st.text(), st.text(), st.text(), st.booleans())
def test_any_text_gets_a_guess_with_a_remedy(common, here, there, in_head):
    cause = guess(Sides(common, here, there), in_head)
    assert REMEDIES[cause]
    assert cause is guess(Sides(common, there, here), in_head)  # neither side is the right one


def test_every_cause_has_a_remedy():
    assert set(REMEDIES) == set(Cause)
