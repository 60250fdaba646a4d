"""What is refused before any work is done for it."""

import pytest
from api_fakes import check, make_app, post, says, tiny_text

from stratakv.api.text import Text

pytestmark = pytest.mark.anyio

TEXT = {"model": "tiny", "prompt": "hi"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "base", "text"),
    [
        ("/v1/completions", TEXT, {"prompt": "word " * 20_000}),
        ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
    ],
)
async def test_what_can_never_fit_is_refused_before_it_is_tokenised(path, base, text, monkeypatch):
    def never(self: Text, text: str) -> None:
        raise AssertionError("it was tokenised")

    app = make_app(says("x"), tiny_text())
    monkeypatch.setattr(Text, "encode", never)
    response = await post(app, path, base | text)
    check(response, 400, next(iter(text)), "characters", "400", "shorten", code="context_length_exceeded")
