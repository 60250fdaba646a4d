"""How the ranks of one generation find each other when a replica starts: what rank 0 publishes, and how it gets to
the others.

Rank 0 opens its sockets and publishes a `Rendezvous`; the others wait for it. Under Ray it travels by actor calls, in
tests through a pipe: whoever starts a rank hands it a `Meeting`.
"""

from typing import Protocol

import msgspec

from stratakv.cluster.messages import KeyPair


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0 of a generation listens, and the keys to talk to it. Secret: whoever has it is taken for a rank."""

    generation: int
    store_port: int
    """Port of the key-value store by which torch's process groups form; all ranks are on one machine."""
    plans: str
    """ZeroMQ address that plans come from."""
    beats: str
    """ZeroMQ address that the head's signs of life come from."""
    head_key: str
    """CURVE public key (Z85) of both."""
    rank_keys: KeyPair
    """The CURVE key pair by which ranks are let in."""


class Meeting(Protocol):
    """How a rank that is starting reaches the others of its generation."""

    def publish(self, rendezvous: Rendezvous) -> None:
        """Rank 0 only: let the other ranks have it. Returns at once."""

    def wait(self, deadline: float) -> Rendezvous:
        """The other ranks: what rank 0 has published. TimeoutError, which names rank 0, after `deadline` seconds."""


class Nobody:
    """The meeting of the only rank of a replica."""

    def publish(self, rendezvous: Rendezvous) -> None:
        """Nobody waits for it."""

    def wait(self, deadline: float) -> Rendezvous:
        """TimeoutError at once: there is no other rank."""
        raise TimeoutError("this rank has nobody to meet; tensor_parallel is 1")
