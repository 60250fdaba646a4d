"""Where the file store puts things, for tests that look at or spoil them."""

import os
import subprocess
import sys
import time

from stratakv.storage.layout import Group
from stratakv.storage.stores.answers import Shelf
from stratakv.storage.stores.specimens import (
    SMALL,
    a_history,
    an_identity,
)
from stratakv.storage.tiers import Component

FULL = Shelf(Component.FULL, Group())
PAGE = SMALL.block_bytes
HOUR = 3600


def home(tmp_path, identity=None):
    return tmp_path / "store" / (identity or an_identity()).digest()


def path_of(tmp_path, page):
    return home(tmp_path) / "full/g0of1" / page.key.hex()[:2] / page.key.hex()


def block_files(root):
    return [path for path in root.glob("*/*/g*of*/??/*") if len(path.name) == 64]


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def one_page(seed):
    return a_history(seed, 1)[0]


def run_python(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
