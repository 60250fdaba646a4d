"""A client that leaves: what was being done for it ends at once, so that it frees what it holds."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection before its answer was complete. Nobody reads what is sent now."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. If the client leaves first, `work` is cancelled, waited for, and ClientGone raised.

    The request's body must have been read. Also ends `work` when the caller is cancelled.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
