"""What a start or stop says while it goes on: one line that changes at a terminal, one line per change elsewhere."""

from types import TracebackType

from rich.console import Console


class Narrator:
    """Sentences on stderr, so that stdout stays free for what was asked for."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("")
        self._last = ""

    def __enter__(self) -> "Narrator":
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._status.stop()

    def doing(self, sentence: str) -> None:
        """Say what is being done, once per change."""
        if sentence == self._last:
            return
        self._last = sentence
        if self._console.is_terminal:
            self._status.update(sentence)
        else:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """Say something that stays."""
        self._console.print(sentence, markup=False, soft_wrap=True)
