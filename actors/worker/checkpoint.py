"""Finds a model's files and refuses, by name, what cannot be served, before any weight is read."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]

_MAMBA_1 = "has Mamba-1 layers, whose chunks do not continue from a state in transformers"
_KNOWN = {
    "mamba": _MAMBA_1,
    "falcon_mamba": _MAMBA_1,
    "jamba": _MAMBA_1,
    "zamba": _MAMBA_1,
    "recurrent_gemma": "keeps recurrent state in its modules, where it cannot be saved",
    "rwkv": "keeps recurrent state only",
}
"""Model types that the check of a loaded model refuses as well, but less clearly, or in bfloat16 not surely."""


class ModelError(Exception):
    """The model cannot be served. The message names the setting, what is wrong and the remedy."""


def find_directory(path: str) -> Path:
    """The local directory of `path`: itself, or the snapshot of a hub name, downloaded when it is not cached.

    ModelError when there is neither.
    """
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    if directory.exists():
        raise ModelError(f"model.path: {path} is a file; give the Hugging Face directory that holds it")
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path):
        raise ModelError(f"model.path: there is no directory {path}; check the path, or give a hub name")
    try:
        return Path(snapshot_download(path, allow_patterns=_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    if "/" not in path:
        raise ModelError(
            f"model.path: {path} is neither a directory nor a hub name in the local cache; "
            "give a directory or a full hub name such as org/model"
        )
    try:
        return Path(snapshot_download(path, allow_patterns=_FILES))
    except (OSError, ValueError) as error:  # the hub's errors are OSErrors
        raise ModelError(
            f"model.path: {path} is neither a directory nor in the local hub cache, and the hub does not give it "
            f"({_first_line(error)}); check the name, or download the model and give its directory"
        ) from error


def read_config(directory: Path) -> PreTrainedConfig:
    """The config in `directory`. ModelError when it is missing, broken, or not that of a causal LM served here."""
    if not (directory / "config.json").is_file():
        raise ModelError(f"model.path: {directory} has no config.json; give a Hugging Face model directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"model.path: config.json of {directory} is not understood: {_first_line(error)}"
        ) from error
    _refuse_other_tasks(directory, config)
    _refuse_known(config)
    return config


def shards(directory: Path) -> list[Path]:
    """The safetensors files of the model, by name: those its index lists, or all there are.

    ModelError when there is none, one is missing, or one is cut short or otherwise damaged.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names: Mapping[str, str] = json.loads(index.read_text())["weight_map"]
            files = sorted({directory / name for name in names.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"model.path: {index} is damaged ({error!r}); download it again") from error
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"model.path: {directory} has no safetensors; load the model with transformers and save it "
            "with save_pretrained, which writes them"
        )
    for file in files:
        _check_shard(file)
    return files


def _check_shard(file: Path) -> None:
    try:
        with safe_open(file, "pt") as tensors:
            tensors.keys()
    except FileNotFoundError:
        raise ModelError(f"model.path: {file} is listed in the index but missing; download it") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"model.path: {file} is damaged ({error}); download it again") from error


def _refuse_other_tasks(directory: Path, config: PreTrainedConfig) -> None:
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    named = config.architectures or []
    if named and not causal.intersection(named):
        what = ", ".join(named)
    elif config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        what = config.model_type
    else:
        return
    raise ModelError(
        f"model.path: {directory} is a {what}, not a causal LM that transformers knows; "
        "give a model whose architecture is a ...ForCausalLM"
    )


def _refuse_known(config: PreTrainedConfig) -> None:
    """What is known to be unservable, said before the weights are read. Everything else is found out by computing."""
    text: dict[str, Any] = config.get_text_config().to_dict()
    why = _KNOWN.get(config.model_type)
    if "chunked_attention" in (text.get("layer_types") or ()):
        why = "uses chunked attention (Llama 4)"
    if why:
        raise ModelError(
            f"model.path: {config.model_type} {why}, which this version does not serve; give a model of full or "
            "sliding attention, with or without Mamba-2, delta-net or short-convolution layers"
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or repr(error)
