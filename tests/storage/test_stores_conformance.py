import pytest

from stratakv.storage.stores.conformance import CHECKS
from stratakv.storage.stores.faulty import FaultRates, FaultyBackend
from stratakv.storage.stores.memory import MemoryBackend
from stratakv.storage.stores.opening import open_store
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.specimens import SMALL, Subject
from stratakv.storage.stores.store import Store


def file_subject(tmp_path):
    def opened(capacity, identity):
        settings = StoreSettings(url=(tmp_path / "store").as_uri(), capacity=capacity)
        return open_store(settings, identity, [SMALL])

    return Subject(opened)


def memory_subject(tmp_path):
    kept = []

    def opened(capacity, identity):
        kept[:] = kept or [MemoryBackend(capacity)]
        return Store(kept[0], identity)

    return Subject(opened)


def quiet_faulty_subject(tmp_path):
    """A faulty store without faults is a good one."""
    inner = file_subject(tmp_path)
    return Subject(
        lambda capacity, identity: Store(
            FaultyBackend(inner.open(capacity, identity).backend, FaultRates(), seed=1), identity
        )
    )


@pytest.mark.parametrize("subject", [file_subject, memory_subject, quiet_faulty_subject])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(check, subject, tmp_path):
    check(subject(tmp_path))
