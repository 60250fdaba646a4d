"""What the demo shows: a table that grows at a terminal, and is printed at the end elsewhere."""

from dataclasses import dataclass
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stratakv.deploy.demo_client import Answer

_TIERS = ("device", "host", "store")


@dataclass(frozen=True, slots=True)
class Row:
    """One request: its turn and conversation, the replica that served it, the answer, and the one without cache."""

    turn: int
    conversation: str
    replica: int
    answer: Answer
    plain: Answer | None = None


class View:
    """A table on stdout, with a line below it that says what is being done (on stderr where there is no terminal)."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False)
        self._rows: list[Row] = []
        self._live = Live(console=self._out, refresh_per_second=8)

    def __enter__(self) -> "View":
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._out.is_terminal:
            self._live.update(table(self._rows))
            self._live.stop()
        else:
            self._out.print(table(self._rows))

    def doing(self, sentence: str) -> None:
        """Say what is being done."""
        if self._out.is_terminal:
            self._live.update(Group(table(self._rows), Spinner("dots", Text(sentence))))
        else:
            self._err.print(sentence, markup=False, soft_wrap=True)

    def show(self, row: Row) -> None:
        """Add a row; one of the same turn and conversation is replaced."""
        same = (row.turn, row.conversation)
        self._rows = [old for old in self._rows if (old.turn, old.conversation) != same] + [row]
        if self._out.is_terminal:
            self._live.update(table(self._rows))


def table(rows: list[Row]) -> Table:
    """The requests so far: prompt tokens by where they came from, and seconds to the first token. 80 columns wide."""
    shown = Table(
        title="prompt tokens by where their KV came from, and seconds to the first token",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    for heading in ("turn", "conversation", "worker"):
        shown.add_column(heading)
    for heading in ("prompt", *_TIERS, "computed", "TTFT", "uncached"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        account = row.answer.account
        shown.add_row(
            str(row.turn),
            row.conversation,
            f"{row.replica}",
            str(account.prompt),
            *(f"[bold green]{count}" if (count := account.of(tier)) else "·" for tier in _TIERS),
            str(account.computed),
            f"{row.answer.ttft:.2f}",
            f"{row.plain.ttft:.2f}" if row.plain else "",
        )
    return shown
