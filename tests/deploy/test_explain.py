"""`stratakv explain` against a gateway that is a plain HTTP server: what is sent, what is shown, and how it fails."""

import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from stratakv.deploy import cli
from stratakv.deploy.explain import parse

SIDE = {"token": 7, "text": "Mon", "after": "day. [Answer]"}
ANSWER = {
    "object": "explanation",
    "model": "tiny",
    "prompt_tokens": 100,
    "page_size": 16,
    "pages": 6,
    "token_map": "end",
    "replicas": [
        {
            "replica": 0,
            "error": None,
            "device_tokens": 32,
            "host_tokens": 16,
            "store_tokens": 0,
            "computed_tokens": 52,
            "misses": [
                {"first_token": 48, "tokens": 48, "reason": "evicted"},
                {"first_token": 96, "tokens": 4, "reason": "page tail"},
            ],
        },
        {"replica": 1, "error": "it sleeps"},
    ],
    "nearest": {
        "common_tokens": 50,
        "common_pages": 3,
        "first_difference": 50,
        "before": "Today is ",
        "here": SIDE,
        "there": {**SIDE, "text": "Tues"},
        "other_namespace_tokens": 0,
        "cause": "date or time",
        "remedy": "A date or time differs.",
    },
}


class Gateway(HTTPServer):
    """Answers everything with `status` and `answer`; `bodies` are what it was sent, with their paths."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.answer, self.bodies = 200, ANSWER, []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append((self.path, body))
        data = json.dumps(self.server.answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def gateway():
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(30)


@pytest.fixture
def stratakv(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["stratakv", "explain", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_what_is_shown(gateway, stratakv):
    code, out, _ = stratakv("--url", gateway.url + "/v1", stdin="Today is Monday.")
    assert code == 0 and gateway.bodies == [("/v1/explain", {"prompt": "Today is Monday."})]
    for words in (
        "100 prompt tokens",
        "evicted: 48 from 48",
        "page tail: 4 from 96",
        "it sleeps",
        "date or time",
    ):
        assert words in out
    for words in ("50 tokens, 3 pages", "number 50", "'Today is '", "'Mon' 'day. [Answer]'", "'Tues'"):
        assert words in out


def test_a_prompt_that_differs_nowhere(gateway, stratakv):
    nearest = ANSWER["nearest"] | {"here": None, "there": None, "first_difference": None, "cause": "goes on"}
    gateway.answer = ANSWER | {"nearest": nearest}
    code, out, _ = stratakv("--url", gateway.url, stdin="hello")
    assert code == 0 and "goes on" in out and "number" not in out


def test_json_is_the_answer_itself(gateway, stratakv):
    code, out, _ = stratakv("--url", gateway.url, "--json", stdin="hello")
    assert code == 0 and json.loads(out) == ANSWER


def test_a_file_and_a_namespace(gateway, stratakv, tmp_path: Path):
    file = tmp_path / "request.json"
    messages = [{"role": "user", "content": "hi"}]
    file.write_text(json.dumps({"model": "tiny", "messages": messages, "cache_salt": "old"}))
    assert stratakv(str(file), "--url", gateway.url, "--cache-salt", "s", "--extra-key", "x")[0] == 0
    [(_, body)] = gateway.bodies
    assert body == {"model": "tiny", "messages": messages, "cache_salt": "s", "extra_key": "x"}


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("hello", {"prompt": "hello"}),
        ('{"prompt": [1, 2]}', {"prompt": [1, 2]}),
        ('[{"role": "user", "content": "a"}]', {"messages": [{"role": "user", "content": "a"}]}),
        ('{"name": "some JSON that is the prompt"}', {"prompt": '{"name": "some JSON that is the prompt"}'}),
        ("[1, 2]", {"prompt": "[1, 2]"}),
        ("{broken", {"prompt": "{broken"}),
    ],
)
def test_what_a_source_is_taken_for(source, body):
    assert parse(source) == body


def test_failures_say_what_to_do(gateway, stratakv, tmp_path: Path):
    code, _, err = stratakv(str(tmp_path / "none"), "--url", gateway.url)
    assert code == 2 and "cannot be read" in err
    code, _, err = stratakv("--url", gateway.url, stdin="")
    assert code == 2 and "is empty" in err
    code, _, err = stratakv(stdin="hello")
    assert code == 2 and "stratakv serve" in err and "--url" in err
    code, _, err = stratakv("--url", "http://127.0.0.1:1", stdin="hello")
    assert code == 2 and "--url" in err
    code, _, err = stratakv("--url", "nonsense", stdin="hello")
    assert code == 2 and "--url" in err
    gateway.answer = {"error": {"message": "`prompt` is too long; shorten it."}}
    for status, expected in ((400, 2), (503, 1)):
        gateway.status = status
        code, _, err = stratakv("--url", gateway.url, stdin="hello")
        assert code == expected and "shorten it" in err
    gateway.status, gateway.answer = 502, []
    code, _, err = stratakv("--url", gateway.url, stdin="hello")
    assert code == 1 and "502" in err
    assert "Traceback" not in err
