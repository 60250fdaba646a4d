"""Ports: which are free, and does anybody answer."""

import errno
import random
import socket
from pathlib import Path

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _COUNT = 10_000, 12_000


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
    candidates = _below_outgoing(_OUTGOING)
    for port in random.sample(candidates, len(candidates)):
        if is_free("", port):
            found.append(port)
        if len(found) == count:
            return found
    first, last = candidates[0], candidates[-1]
    raise RuntimeError(f"found only {len(found)} of {count} free ports from {first} to {last}")


def _below_outgoing(told: Path) -> range:
    """Below the ports that the system gives to outgoing connections, so that none of those gets in between. Usually
    they begin at 32,768, in some containers at 16,000."""
    try:
        end = int(told.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = 0
    if end <= _LOWEST + 1_000:
        end = 32_768
    return range(max(_LOWEST, end - _COUNT), end)


def answers(host: str, port: int, timeout: float) -> bool:
    """Whether somebody takes a connection at host:port within `timeout` seconds."""
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False
