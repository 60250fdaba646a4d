import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for tests that hypothesis drives."""
    with asyncio.Runner() as runner:
        yield runner
