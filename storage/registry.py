"""Names of the choices a settings file may make. An unknown name is an error that lists the known ones."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class UnknownName(ValueError):
    """A setting names something that nobody registered. The message lists what there is."""


class Registry(Generic[T]):
    """Things of one `kind`, by the names that `setting` may hold."""

    def __init__(self, kind: str, setting: str):
        self._kind = kind
        self._setting = setting
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that enters its target under `name`. ValueError if the name is taken."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self._kind} {name!r} is already registered; choose another name")
            self._entries[name] = entry
            return entry

        return enter

    def get(self, name: str) -> T:
        """What is registered under `name`. Raises UnknownName."""
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(self.names()) or "none"
            raise UnknownName(
                f"{self._setting}: there is no {self._kind} {name!r}; known are: {known}"
            ) from None

    def names(self) -> list[str]:
        """The known names, sorted."""
        return sorted(self._entries)
