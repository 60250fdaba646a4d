"""The model a worker serves: any Hugging Face causal LM, run over the memory of its rank.

A step's rows become one flat forward without padding. The model's own code is not changed; its attention and its cache
are ours, and its recurrent layers are called request by request.
"""

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.checkpoint import ModelError, find_directory, read_config, shards
from stratakv.actors.worker.selfcheck import check_served, references, vocab_size
from stratakv.cluster.plan import Row
from stratakv.kernels import attention, probe
from stratakv.kernels.attention import PAGED_ATTENTION
from stratakv.kernels.context import ForwardContext, forwarding
from stratakv.kernels.forward_cache import ForwardCache
from stratakv.kernels.linear import SlicedLinear, lay_out_for_decode
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.mixers import serve_by_request
from stratakv.kernels.probe import PROBE_ATTENTION, Probed
from stratakv.kernels.shapes import ModelShapes

__all__ = ["Model", "ModelError"]

Network = Any
"""A transformers model; what it returns and takes differs too much by family for a type."""
Loader = Callable[[Path, PreTrainedConfig, torch.dtype, torch.device], Network]
"""Loads the network of a directory, with plain attention and in evaluation mode; see `_load_network`."""

_PLAIN_ATTENTION = "eager"
_PROBE_TOKENS = 3

_VOLATILE = (
    "transformers_version",
    "_name_or_path",
    "_model_name_or_path",
    "dtype",
    "torch_dtype",
    "use_cache",
)
"""Lines of config.json that do not change what the model computes (the type of its KV is in the identity by itself)."""


class Model:
    """A loaded model.

    `name` is what clients call it, `directory` where its files are, `shapes` all that it caches, `vocab_size`
    the width of its logits, `context_length` the most tokens a request may have, `eos_token_ids` what ends an answer,
    and `config_digest` the SHA-256 of its config.
    """

    name: str
    directory: Path
    shapes: ModelShapes
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    config_digest: str
    dtype: torch.dtype
    device: torch.device

    def __init__(self, network: Network, probed: Probed, directory: Path, settings: ModelSettings):
        """Wrap `network`, set its attention to ours and its mixers to work by request. Use `load`, which also checks
        that this changes no logits."""
        self._network = network
        self.directory = directory
        self.name = settings.served_name or settings.path.rstrip("/").split("/")[-1]
        self.dtype = network.dtype
        self.device = network.device
        self.shapes = probed.shapes
        self.vocab_size = vocab_size(network)
        self.context_length = _context_length(network.config, settings)
        self.eos_token_ids = _eos_token_ids(network)
        self.config_digest = _config_digest(directory)
        network.set_attn_implementation(PAGED_ATTENTION)
        serve_by_request(probed.mixers)
        head = network.get_output_embeddings()
        if self.device.type == "cpu":
            if type(head) is torch.nn.Linear:
                network.set_output_embeddings(SlicedLinear(head))
            lay_out_for_decode(network)

    @classmethod
    def load(cls, settings: ModelSettings, loader: "Loader | None" = None) -> "Model":
        """Load the model that `settings` name, in one go with a self-check of a few short forwards.

        `loader` gives the network of a rank that has only a share of it. ModelError, with the setting and the remedy,
        for whatever cannot be served rightly.
        """
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        device = _device(settings)
        if device.type == "cpu":
            torch.set_num_threads(settings.threads)
        directory = find_directory(settings.path)
        config = read_config(directory)
        network = (loader or _load_network)(directory, config, _dtype(settings, device), device)
        probed = _probe(network)
        expected = references(network, probed.windows)
        model = cls(network, probed, directory, settings)
        check_served(model, expected)
        return model

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        """Compute KV and state of all new tokens of `rows` into `memory`; logits of the last token of sampling rows.

        The result is float32 [rows with sample, vocab] on the model's device, in row order. ValueError for a row whose
        slots do not fit it.
        """
        with torch.inference_mode():
            context = ForwardContext(rows, memory)
            with forwarding(context):
                output = self._network(
                    input_ids=context.tokens[None],
                    position_ids=context.positions[None],
                    cache=ForwardCache(context),
                    use_cache=True,
                    logits_to_keep=context.last,
                )
            logits: torch.Tensor = output.logits[0]
            return logits.float()


def _device(settings: ModelSettings) -> torch.device:
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device: cuda was asked for, but torch finds no GPU; use auto or cpu")
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def _dtype(settings: ModelSettings, device: torch.device) -> torch.dtype:
    by_name = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    by_name["auto"] = torch.float32 if device.type == "cpu" else torch.bfloat16
    return by_name[settings.dtype]


def _load_network(
    directory: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> Network:
    """The network with plain attention, in evaluation mode on `device`."""
    shards(directory)
    attention.register()
    probe.register()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, attn_implementation=_PLAIN_ATTENTION,
            local_files_only=True, use_safetensors=True, output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError, SafetensorError) as error:
        raise ModelError(f"model.path: {directory} cannot be loaded: {error}") from error
    network, report = loaded
    if report["missing_keys"]:
        names = sorted(report["missing_keys"])
        raise ModelError(
            f"model.path: {directory} lacks {len(names)} weights, {names[0]} among them; download it again"
        )
    return network.eval().to(device)


def _probe(network: Network) -> Probed:
    """What one forward over the probe shows that `network` caches. Its attention is plain again afterwards."""
    tokens = torch.zeros(1, _PROBE_TOKENS, dtype=torch.int64, device=network.device)
    positions = torch.arange(_PROBE_TOKENS, device=network.device)[None]
    network.set_attn_implementation(PROBE_ATTENTION)
    try:
        with torch.inference_mode():
            return probe.probe(
                network,
                lambda cache: network(input_ids=tokens, position_ids=positions, cache=cache, use_cache=True),
            )
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
        raise ModelError(
            f"model.path: {network.config.model_type} cannot be served from paged memory ({error}); "
            "give a model whose layers keep KV, or recurrent state that can be checkpointed, in transformers' cache"
        ) from error
    finally:
        network.set_attn_implementation(_PLAIN_ATTENTION)


def _context_length(config: PreTrainedConfig, settings: ModelSettings) -> int:
    try:
        longest: int | None = config.get_text_config().max_position_embeddings
    except AttributeError:
        longest = None
    wanted = settings.context_length
    if longest is None and wanted is None:
        raise ModelError("model.context_length: the model's config does not say; set it")
    if longest is not None and wanted is not None and wanted > longest:
        raise ModelError(
            f"model.context_length: {wanted} is more than the {longest} tokens of the model; lower it or leave it out"
        )
    return wanted or longest or 0


def _eos_token_ids(network: Network) -> tuple[int, ...]:
    """Every end token that either the generation config or the config names, ascending."""
    ids: set[int] = set()
    for config in (network.generation_config, network.config.get_text_config()):
        named = config.eos_token_id if config is not None else None
        ids.update([] if named is None else [named] if isinstance(named, int) else named)
    return tuple(sorted(ids))


def _config_digest(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    lasting = {key: value for key, value in config.items() if key not in _VOLATILE}
    return sha256(json.dumps(lasting, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
