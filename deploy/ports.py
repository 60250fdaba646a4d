"""Ports: which are free, and does anybody answer."""

import errno
import random
import socket

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_RANGE = range(20000, 32000)
"""Below where Linux takes the ports of outgoing connections from, so that none of those gets in between."""


def is_free(host: str, port: int) -> bool:
    """Whether `port` of `host`'s interface can be listened on. OSError if `host` is not an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if port and error.errno in _TAKEN:
                return False
            raise
    return True


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on right now, on any interface. RuntimeError if there are too few."""
    found: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if is_free("", port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"found only {len(found)} of {count} free ports in {_RANGE.start} to {_RANGE.stop}")


def answers(host: str, port: int, timeout: float) -> bool:
    """Whether somebody takes a connection at host:port within `timeout` seconds."""
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False
