"""Fields of OpenAI's API that are not built: which of their values change nothing, and what to do about the others.

A client library sends many fields at their defaults. Those that cannot change the answer are dropped; a value that
would change it is refused by name, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

FIELD_ERROR = "stratakv_field"
"""Type of the errors that `field_error` makes."""


def field_error(field: str, message: str, **context: object) -> PydanticCustomError:
    """An error of a validator that looked at an object and found fault with its `field` (or a list and an index).
    `message` may refer to the context.
    """
    return PydanticCustomError(FIELD_ERROR, message, {"field": field, **context})


@dataclass(frozen=True, slots=True)
class Neutral:
    """The values of a field that change nothing (None always does not), and the remedy for any other."""

    values: tuple[object, ...] = ()
    remedy: str = "leave it out"

    def admits(self, value: object) -> bool:
        """Whether `value` changes nothing. True is not 1 here, but 0.0 is 0."""
        return value is None or any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
            for neutral in self.values
        )


_ONE = Neutral((1,), "leave it out or send 1, and send one request for each answer")
_ZERO = Neutral((0,), "leave it out or send 0")
_OFF = Neutral((False,), "leave it out or send false")
_ON = Neutral((True,), "leave it out or send true")
_EMPTY_OBJECT = Neutral(({},), "leave it out or send {}")
_EMPTY_LIST = Neutral(([],), "leave it out or send []")
_NONE = Neutral()

HINTS = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "prediction",
    )
)
"""Fields that say something about a request and not about its answer; any value is accepted and not used."""

_SHARED: Mapping[str, Neutral] = {
    "n": _ONE,
    "best_of": _ONE,
    "presence_penalty": _ZERO,
    "frequency_penalty": _ZERO,
    "repetition_penalty": Neutral((1,), "leave it out or send 1"),
    "min_p": _ZERO,
    "min_tokens": _ZERO,
    "logit_bias": _EMPTY_OBJECT,
    "echo": _OFF,
    "skip_special_tokens": _ON,
    "spaces_between_special_tokens": _ON,
    "include_stop_str_in_output": _OFF,
    "response_format": Neutral(({"type": "text"},), 'leave it out or send {"type": "text"}'),
}

COMPLETION: Mapping[str, Neutral] = {
    **_SHARED,
    "logprobs": _NONE,
    "suffix": Neutral(("",), "leave it out and put all of the text into `prompt`"),
    "add_special_tokens": Neutral((True,), "leave it out; send token ids to choose every token yourself"),
}
"""Unbuilt fields of /v1/completions."""

_NO_TOOLS = "leave it out; tools are not supported yet"

CHAT: Mapping[str, Neutral] = {
    **_SHARED,
    "logprobs": _OFF,
    "top_logprobs": _ZERO,
    "tools": Neutral(([],), _NO_TOOLS),
    "functions": Neutral(([],), _NO_TOOLS),
    "tool_choice": Neutral(("none", "auto"), _NO_TOOLS),
    "function_call": Neutral(("none", "auto"), _NO_TOOLS),
    "modalities": Neutral((["text"], []), 'leave it out or send ["text"]'),
    "audio": _NONE,
    "reasoning_effort": Neutral(("none",), 'leave it out or send "none"'),
    "verbosity": Neutral(("medium",), 'leave it out or send "medium"'),
    "web_search_options": _NONE,
    "add_generation_prompt": _ON,
    "continue_final_message": _OFF,
    "chat_template": _NONE,
    "chat_template_kwargs": _EMPTY_OBJECT,
    "documents": _EMPTY_LIST,
}
"""Unbuilt fields of /v1/chat/completions."""

MESSAGE: Mapping[str, Neutral] = {
    "tool_calls": Neutral(([],), _NO_TOOLS),
    "function_call": Neutral((), _NO_TOOLS),
    "refusal": Neutral(("",), "leave it out and put the text into `content`"),
    "audio": Neutral((), "leave it out; send text only"),
    "annotations": _EMPTY_LIST,
    "reasoning": Neutral(("",)),
    "reasoning_content": Neutral(("",)),
}
"""Unbuilt fields of a message; client libraries send an answer back with them."""


def without_neutral(
    data: object, unbuilt: Mapping[str, Neutral], hints: frozenset[str] = frozenset()
) -> object:
    """`data` without the `hints` and the unbuilt fields that change nothing. Raises a `field_error` for one that
    would. What is no object is returned as it is.
    """
    if not isinstance(data, dict):
        return data
    for field, value in data.items():
        neutral = unbuilt.get(field)
        if neutral is not None and not neutral.admits(value):
            raise field_error(field, "this value is not supported yet; {remedy}", remedy=neutral.remedy)
    return {field: value for field, value in data.items() if field not in unbuilt and field not in hints}
