"""What clients may send, as strict models: a wrong type, an unknown field or a value out of range is an error."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from stratakv.api import fields
from stratakv.api.fields import Neutral, field_error
from stratakv.cluster.messages import HIGHEST_PRIORITY, LOWEST_PRIORITY

_INT64 = 2**63
MAX_STOPS = 16
"""Stop strings of one request."""


class RequestModel(BaseModel):
    """Base of all request bodies: nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    unbuilt: ClassVar[Mapping[str, Neutral]] = {}
    hints: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: object) -> object:
        return fields.without_neutral(data, cls.unbuilt, cls.hints)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _joined(value: object) -> object:
    """The text of content parts, one a line. Each part is an object of the type `text`."""
    if not isinstance(value, list):
        return value
    if not value:
        raise PydanticCustomError("no_part", "there is no part; send a string or at least one text part")
    return "\n".join(_part_text(index, part) for index, part in enumerate(value))


def _part_text(index: int, part: object) -> str:
    match part:
        case {"type": "text", "text": str(text), **rest} if not rest.keys() - {"cache_control"}:
            return text
        case {"type": str(kind)} if kind != "text":
            message = "parts of the type `{kind}` are not supported; send parts of the type `text` only"
            raise field_error(str(index), message, kind=kind[:80])
    raise field_error(str(index), 'a part is {"type": "text", "text": "..."} and has no other fields')


StopString = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=MAX_STOPS)]


class StreamOptions(RequestModel):
    """How a stream is sent. `include_usage` adds a last chunk with the usage and no choice."""

    hints = frozenset({"include_obfuscation"})

    include_usage: bool | None = None


class GenerationRequest(RequestModel):
    """What both kinds of completion have in common. None is the same as leaving a field out."""

    hints = fields.HINTS

    model: Annotated[str, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extensions
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """0 and -1 mean no limit."""
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=256)] | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    extra_key: Annotated[str, Field(max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] | None = None
    """Pages of a request with a larger one are kept longer, if the cluster's eviction policy asks for it."""
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "this is only for streams; set `stream` to true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def output_limit(self) -> int | None:
        """The most output tokens the client asked for, None if it did not say."""
        return self.max_tokens


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions. `prompt` is looked at by `completions.parse_prompt`."""

    unbuilt = fields.COMPLETION

    prompt: Any


class Message(RequestModel):
    """One message of a conversation."""

    unbuilt = fields.MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    name: str | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error("content", "this must be a string or a list of text parts")
        return self

    def for_template(self) -> dict[str, str]:
        """What a chat template is given. Templates know `system` and not its newer name `developer`."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


Messages = Annotated[list[Message], Field(min_length=1)]


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    unbuilt = fields.CHAT

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise field_error("max_tokens", "this differs from `max_completion_tokens`; send only that one")
        return self

    def output_limit(self) -> int | None:
        """The most output tokens the client asked for, None if it did not say."""
        return self.max_completion_tokens or self.max_tokens


class ExplainRequest(GenerationRequest):
    """Body of POST /v1/explain: that of either kind of completion, as it was sent there. What has to do with the answer
    alone is checked and not used."""

    unbuilt: ClassVar[Mapping[str, Neutral]] = {**fields.COMPLETION, **fields.CHAT}

    model: Annotated[str, Field(min_length=1)] | None = None  # type: ignore[assignment]
    prompt: Any = None
    messages: Messages | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("prompt", "send either `prompt` or `messages`")
        return self


class TokenizeRequest(RequestModel):
    """Body of POST /tokenize: `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """By default true for a prompt and false for messages, whose template writes them."""
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("prompt", "send either `prompt` or `messages`")
        return self


class DetokenizeRequest(RequestModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]
