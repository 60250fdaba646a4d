"""How a rank comes to its store: from the URL in the settings to a front with a backend behind it."""

import importlib
import re
from collections.abc import Sequence

from stratakv.storage.identity import Identity
from stratakv.storage.layout import BlockLayout
from stratakv.storage.registry import UnknownName
from stratakv.storage.stores import file, memory  # noqa: F401  (they register themselves)
from stratakv.storage.stores.base import STORES, Opener
from stratakv.storage.stores.errors import StoreUrlError
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.store import Store

_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?://.*)?")
_CLASS = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)(?:\?.*)?")


def open_store(settings: StoreSettings, identity: Identity, layouts: Sequence[BlockLayout]) -> Store:
    """The store that `settings.url` names, for a rank whose blocks have `layouts` (one per component).

    Raises StoreError with the setting and the remedy. `Store.remarks` is what an operator should read next.
    """
    opener = find_opener(settings.url or "")
    return Store(opener(settings, identity, layouts), identity, settings.batch_pages)


def find_opener(url: str) -> Opener:
    """What opens `url`: the opener of its scheme, or any callable as `a.module:name`. StoreUrlError."""
    if match := _SCHEME.fullmatch(url):
        try:
            return STORES.get(match[1])
        except UnknownName as error:
            raise StoreUrlError(f"{error}; or name a class as a.module:Class") from None
    if match := _CLASS.fullmatch(url):
        return _load(match[1], match[2])
    raise StoreUrlError(
        f"store.url is {url!r}; write it as file:///directory or a.module:Class; known schemes are: "
        f"{', '.join(STORES.names())}"
    )


def _load(module: str, name: str) -> Opener:
    try:
        found = vars(importlib.import_module(module))[name]
    except ImportError as error:
        raise StoreUrlError(f"store.url: the module {module} cannot be imported: {error}") from error
    except KeyError:
        raise StoreUrlError(f"store.url: the module {module} has no {name}") from None
    if not callable(found):
        raise StoreUrlError(
            f"store.url: {module}:{name} cannot be called with settings, identity and layouts"
        )
    opener: Opener = found
    return opener
