"""CURVE on ZeroMQ: key pairs, secured sockets, and the gatekeeper that admits only known clients.

Gateways share one key pair and heads make their own; both halves that must travel do so through Ray. Without
the gatekeeper a CURVE server encrypts but lets in anybody who knows its public key.
"""

import logging
from typing import Any

import zmq
from zmq.utils import z85

from stratakv.cluster.messages import KeyPair

_log = logging.getLogger(__name__)

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"stratakv"


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise RuntimeError(
            f"libzmq {zmq.zmq_version()} was built without CURVE, so the link between gateways and heads "
            "cannot be secured; install a pyzmq wheel, which has it, or build libzmq with libsodium"
        )


def new_key_pair() -> KeyPair:
    """A fresh CURVE key pair. RuntimeError with the remedy if libzmq lacks CURVE."""
    _require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def secure_server(socket: "zmq.Socket[Any]", keys: KeyPair) -> None:
    """Make `socket` a CURVE server with `keys`. Call it before bind, and have a Gatekeeper in the same context."""
    _require_curve()
    socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())


def secure_client(socket: "zmq.Socket[Any]", keys: KeyPair, server: str) -> None:
    """Make `socket` a CURVE client with `keys` that trusts only the server with public key `server`. Before connect."""
    _require_curve()
    socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())


class Gatekeeper:
    """Answers libzmq's question (ZAP, RFC 27) whether a client may come in: only if its public key is in
    `allowed`.

    One per context, made before any socket of it is bound. The owner polls `socket` and calls `answer` when
    it is readable. ValueError if an allowed key is not a Z85 key.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: frozenset[str]):
        self._allowed = frozenset(z85.decode(key.encode()) for key in allowed)
        if any(len(key) != 32 for key in self._allowed):
            raise ValueError("an allowed CURVE public key is not 40 characters of Z85")
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ADDRESS)

    def answer(self) -> None:
        """Answer the one request that waits."""
        version, request_id, _domain, address, _identity, mechanism, *keys = self.socket.recv_multipart()
        admitted = mechanism == b"CURVE" and len(keys) == 1 and keys[0] in self._allowed
        if not admitted:
            _log.warning(
                "refused a client at %s: its key is not the gateways' key", address.decode(errors="replace")
            )
        status = [b"200", b"OK"] if admitted else [b"400", b"unknown key"]
        self.socket.send_multipart([version, request_id, *status, b"", b""])
