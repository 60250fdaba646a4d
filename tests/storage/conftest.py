"""Fixtures of the storage tests."""

import pytest

from stratakv.storage.stores.opening import open_store
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.specimens import (
    ROOMY,
    SMALL,
    an_identity,
)


@pytest.fixture
def opened(tmp_path):
    """Opens stores on one directory; all are closed in the end."""
    stores = []

    def make(capacity=ROOMY, identity=None, root=tmp_path / "store"):
        settings = StoreSettings(url=root.as_uri(), capacity=capacity)
        stores.append(open_store(settings, identity or an_identity(), [SMALL]))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
