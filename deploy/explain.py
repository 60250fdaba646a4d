"""`stratakv explain`: asks a gateway where the KV of a prompt would come from, and shows why the rest is computed."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stratakv.deploy import records
from stratakv.deploy.commands import CommandError

_DEADLINE = 90.0  # seconds; a gateway waits 30 by default
_USER = 2

File = Annotated[
    Path | None,
    typer.Argument(
        help="A text, or the JSON of a request or of its messages; by default from standard input."
    ),
]


def explain(
    file: File = None,
    url: Annotated[str | None, typer.Option(help="Of the gateway. By default the running cluster's.")] = None,
    cache_salt: Annotated[str | None, typer.Option(help="Of the request that is asked about.")] = None,
    extra_key: Annotated[str | None, typer.Option(help="Of the request that is asked about.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as it came.")] = False,
) -> None:
    """Show for a prompt what each tier would give, why the rest is computed, and where it parts from what is cached."""
    body = parse(_read(file))
    body |= {name: value for name, value in (("cache_salt", cache_salt), ("extra_key", extra_key)) if value}
    answer = _post(_gateway(url), body)
    if as_json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        show(answer, Console())


def parse(source: str) -> dict[str, Any]:
    """The body of a request: `source` may be one, or a list of messages, or any other text, which is the prompt."""
    try:
        found = json.loads(source)
    except ValueError:
        return {"prompt": source}
    match found:
        case {"messages": _} | {"prompt": _}:
            return dict(found)
        case [{"role": _}, *_]:
            return {"messages": found}
    return {"prompt": source}


def _read(file: Path | None) -> str:
    try:
        source = sys.stdin.read() if file is None or str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{file or 'standard input'} cannot be read ({error}); give a text", _USER
        ) from None
    if not source:
        raise CommandError(f"{file or 'standard input'} is empty; give a prompt or messages", _USER)
    return source


def _gateway(url: str | None) -> str:
    if url is None:
        try:
            url = records.choose(None).url
        except records.RecordError as error:
            raise CommandError(f"{error}; or give --url", _USER) from None
    if not url:
        raise CommandError("the cluster does not serve yet; try again, or give --url", 1)
    return url.rstrip("/").removesuffix("/v1")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of the gateway. CommandError with its own words if it has none."""
    try:
        request = urllib.request.Request(
            f"{url}/v1/explain", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_DEADLINE) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} refuses: {_refusal(error)}", _USER if error.code < 500 else 1) from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{url} gives no answer ({error}); set --url to a gateway", _USER) from None
    return answer


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def show(answer: dict[str, Any], console: Console) -> None:
    """Print `answer` for people."""
    page = answer["page_size"]
    console.print(
        f"{answer['prompt_tokens']} prompt tokens, {answer['pages']} reusable pages of {page} tokens"
    )
    table = Table("replica", "device", "host", "store", "computed", "why")
    for replica in answer["replicas"]:
        table.add_row(*_row(replica))
    console.print(table)
    _show_nearest(answer["nearest"], console)


def _row(replica: dict[str, Any]) -> list[str]:
    if replica["error"]:
        return [str(replica["replica"]), "", "", "", "", escape(replica["error"])]
    shares = [replica[f"{tier}_tokens"] for tier in ("device", "host", "store", "computed")]
    why = [
        f"{miss['reason']}: {miss['tokens']} from {miss['first_token']}"
        for miss in replica["misses"]
        if miss["tokens"]
    ]
    return [str(replica["replica"]), *map(str, shares), "\n".join(why)]


def _show_nearest(nearest: dict[str, Any], console: Console) -> None:
    console.print(f"[bold]{nearest['cause']}[/bold]: {escape(nearest['remedy'])}")
    console.print(
        f"in common with the nearest history: {nearest['common_tokens']} tokens, {nearest['common_pages']} pages"
    )
    if nearest["here"] is None or nearest["there"] is None:
        return
    console.print(f"the first token that differs is number {nearest['first_difference']}, after")
    console.print(f"  {escape(repr(nearest['before']))}")
    for name, side in (("here", nearest["here"]), ("there", nearest["there"])):
        text, after = escape(repr(side["text"])), escape(repr(side["after"]))
        console.print(f"{name:>7}: [reverse]{text}[/reverse] {after}")
