"""A client's end of the line to one head: a DEALER that never waits, on one event loop.

Gateways send requests over it, the router its watch. It keeps reconnecting by itself; what that means is up to its
owner.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import zmq
import zmq.asyncio

from stratakv.cluster.curve import secure_client
from stratakv.cluster.messages import Endpoint, KeyPair
from stratakv.cluster.settings import WireSettings

_T = TypeVar("_T")

_RECONNECT = (100, 2000)  # milliseconds between attempts, first and longest


class Dealer:
    """A CURVE client with `keys` of the head at `endpoint`. `connect` opens it, `close` ends it at once."""

    def __init__(self, endpoint: Endpoint, keys: KeyPair, wire: WireSettings, context: zmq.asyncio.Context):
        self._address = endpoint.address
        self.socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        """For polling, and for its monitor."""
        secure_client(self.socket, keys, endpoint.public_key)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, wire.max_message)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT[0])
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT[1])

    def connect(self) -> None:
        """Begin to connect. Needs the running event loop."""
        self.socket.connect(self._address)

    def send(self, data: bytes) -> bool:
        """Give `data` to ZeroMQ if it takes it now, which it does while it is connecting too. Never waits, so that
        nothing is left pending when the socket closes. False if it does not, or once closed."""
        if self.socket.closed:
            return False
        try:
            resolved(self.socket.send(data, zmq.NOBLOCK))
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """The frames of the next message that is here, or None."""
        try:
            return resolved(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def close(self) -> None:
        """Close the socket and drop what was not sent."""
        self.socket.close(linger=0)


def resolved(result: Awaitable[_T]) -> _T:
    """The outcome of a NOBLOCK call; pyzmq resolves it at once while no send of this socket is pending."""
    assert isinstance(result, asyncio.Future)
    outcome: _T = result.result()
    return outcome
