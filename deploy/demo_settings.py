"""The settings of `stratakv demo`: two small replicas on this machine's CPUs, and memory measured in conversations.

The device pool holds the demo's conversation and one like it, so that a few others push it out; the host pool holds all
that is said in the demo.
"""

import json
import os
from pathlib import Path
from typing import Any

from stratakv.deploy.sources import SettingPath
from stratakv.kernels.shapes import LayerShape
from stratakv.storage.layout import BlockLayout

PAGE_SIZE = 32
DEVICE_PAGES = 72
"""Pages of a replica's device pool: 2,304 tokens."""
HOST_PAGES = 288
"""Pages of a replica's host pool: 9,216 tokens."""
_FLOAT32 = 4
_ROUTER_DEADLINE = 10.0
_HEARTBEAT_TIMEOUT = 30.0


class UnknownShape(ValueError):
    """The model's config does not say how large its KV is."""


def demo_settings(model: Path, store: Path) -> dict[str, tuple[SettingPath, Any]]:
    """Settings as flags, for the Hugging Face directory `model` and a store in the folder `store`. UnknownShape."""
    layout = BlockLayout(layer_shapes(model), PAGE_SIZE, _FLOAT32)
    values: dict[SettingPath, Any] = {
        ("model", "path"): str(model),
        ("model", "served_name"): "demo",
        ("model", "device"): "cpu",
        ("model", "dtype"): "float32",
        ("model", "threads"): max(1, (os.cpu_count() or 1) // 2),
        ("replicas",): 2,
        ("cache", "page_size"): PAGE_SIZE,
        ("cache", "device_memory"): DEVICE_PAGES * layout.payload_bytes,
        ("cache", "host_memory"): HOST_PAGES * layout.block_bytes,
        ("cache", "write_policy"): "write_through",
        ("scheduler", "token_budget"): 256,
        ("scheduler", "max_running"): 4,
        ("store", "url"): store.as_uri(),
        ("router", "policy"): "deepest_hit",
        # A busy laptop may keep the router from answering for a while; the demo needs its word on every request.
        ("router", "deadline"): _ROUTER_DEADLINE,
        # For the same reason a worker that is silent for a while is not taken for dead: the demo kills one itself.
        ("heartbeat", "timeout"): _HEARTBEAT_TIMEOUT,
        ("api", "host"): "127.0.0.1",
        ("api", "port"): 0,
    }
    return {f"the demo ({'.'.join(path)})": (path, value) for path, value in values.items()}


def layer_shapes(model: Path) -> list[LayerShape]:
    """KV of each layer, as the config says: good enough to size a demo; workers measure it. UnknownShape."""
    try:
        config = json.loads((model / "config.json").read_text())
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        shape = LayerShape(config.get("num_key_value_heads") or heads, size, size)
        return [shape] * config["num_hidden_layers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnknownShape(
            f"--model: {model}/config.json does not say how large the model's KV is ({type(error).__name__}: {error}); "
            "run the demo with smollm2 or another Llama-like model"
        ) from None
