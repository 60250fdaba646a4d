"""A model split over the ranks of a replica, by the tensor-parallel plan that transformers has for its family.

Each rank reads only its share of the weights. What the plan does not split, every rank computes whole; the ranks'
parts meet in collectives of the default process group, which must exist. The network that comes back holds plain
tensors: query, key and value projections of this rank's heads, so attention sees those heads alone, and a head of the
vocabulary that gathers whole logits on every rank.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, DistributedConfig, PreTrainedConfig

from stratakv.actors.worker.checkpoint import ModelError, shards
from stratakv.actors.worker.split import HeadSplit, Indivisible, split_of
from stratakv.kernels import attention, probe
from stratakv.kernels.linear import SlicedLinear

_SPLIT_ATTENTION = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
_PLAIN_KV = frozenset({"full_attention", "sliding_attention"})


def split_for(config: PreTrainedConfig, ranks: int) -> HeadSplit:
    """How this model's heads are dealt out. ModelError, naming tensor_parallel, for one that cannot be split so."""
    text = config.get_text_config()
    kinds = set(text.to_dict().get("layer_types") or ()) - _PLAIN_KV
    if kinds:
        raise _unsplittable(config, f"it has layers of type {', '.join(sorted(kinds))}")
    plan = text.base_model_tp_plan or {}
    rules = {name.rpartition("self_attn.")[2]: rule for name, rule in plan.items() if "self_attn." in name}
    if {name: rules.get(name) for name in _SPLIT_ATTENTION} != _SPLIT_ATTENTION:
        raise _unsplittable(
            config, "the plan that transformers has for it does not split its attention heads"
        )
    try:
        split = split_of(text.to_dict(), ranks)
    except Indivisible as error:
        raise ModelError(f"model.path: {config.model_type}: {error}") from error
    if split is None:
        raise _unsplittable(config, "its config does not say how many heads it has")
    return split


def load_sharded(
    directory: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    rank: int,
    ranks: int,
) -> Any:
    """The share of rank `rank` of the network in `directory`, with plain attention, in evaluation mode on `device`.

    ModelError for files that cannot be loaded and for models that cannot be split over `ranks` ranks.
    """
    split = split_for(config, ranks)
    if device.type == "cpu" and torch.cuda.is_available():
        raise ModelError(
            f"model.device is cpu and tensor_parallel is {ranks} on a machine with GPUs, where transformers splits "
            "over those; hide them with CUDA_VISIBLE_DEVICES= or use model.device cuda"
        )
    shards(directory)
    attention.register()
    probe.register()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, attn_implementation="eager", local_files_only=True,
            use_safetensors=True, output_loading_info=True, distributed_config=_distribution(config, split),
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError, SafetensorError) as error:
        raise ModelError(
            f"model.path: {directory} cannot be loaded over {ranks} ranks (tensor_parallel): {error}"
        ) from error
    network, report = loaded
    if report["missing_keys"]:
        names = sorted(report["missing_keys"])
        raise ModelError(
            f"model.path: {directory} lacks {len(names)} weights, {names[0]} among them; download it again"
        )
    _gather_logits(network)
    _unwrap(network)
    if split.copies > 1:
        _keep_own_kv_head(network, split, rank)
    return network.eval()


def _distribution(config: PreTrainedConfig, split: HeadSplit) -> DistributedConfig:
    """The family's own plan; KV heads that cannot be dealt out are left whole, and cut by `_keep_own_kv_head`."""
    if split.copies == 1:
        return DistributedConfig(tp_size=split.ranks)
    own = config.get_text_config().base_model_tp_plan or {}
    whole = {f"model.{name}": "replicate" for name in own if name.endswith((".k_proj", ".v_proj"))}
    return DistributedConfig(tp_size=split.ranks, tp_plan=whole)


class GatheredHead(torch.nn.Module):
    """This rank's rows of an output embedding; gives the logits of the whole vocabulary on every rank."""

    def __init__(self, head: torch.nn.Linear):
        """Take the share over from `head`, whose weight is a DTensor split by rows."""
        super().__init__()
        self.out_features = head.out_features
        rows = head.weight
        assert isinstance(rows, DTensor)
        self._ranks = rows.device_mesh.size()
        self._group = rows.device_mesh.get_group("tp")
        self._share = -(-head.out_features // self._ranks)  # the last rank may have fewer
        local = torch.nn.Linear(1, 1, bias=False, device="meta")
        local.weight = torch.nn.Parameter(rows.to_local(), requires_grad=False)
        if head.bias is not None:
            bias = head.bias.to_local() if isinstance(head.bias, DTensor) else head.bias
            local.bias = torch.nn.Parameter(bias, requires_grad=False)
        self.local = SlicedLinear(local) if local.weight.device.type == "cpu" else local

    @property
    def weight(self) -> torch.Tensor:
        """This rank's rows [share, in]."""
        return self.local.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., vocabulary], equal on all ranks. A collective."""
        part = self.local(inputs)
        missing = self._share - part.shape[-1]
        part = torch.nn.functional.pad(part, (0, missing)) if missing else part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self._ranks)]
        dist.all_gather(parts, part, group=self._group)
        return torch.cat(parts, dim=-1)[..., : self.out_features]


def _gather_logits(network: Any) -> None:
    head = network.get_output_embeddings()
    if isinstance(head.weight, DTensor):
        network.set_output_embeddings(GatheredHead(head))


def _unwrap(network: torch.nn.Module) -> None:
    """Put each rank's own tensor in place of the distributed one, but for embeddings, whose look-up needs to know what
    it has a part of. transformers' forward of a split Linear takes both, and is quicker with the plain one."""
    for module in network.modules():
        if isinstance(module, torch.nn.Embedding):
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            if isinstance(weight, DTensor):
                module.register_parameter(name, torch.nn.Parameter(weight.to_local(), requires_grad=False))


def _keep_own_kv_head(network: torch.nn.Module, split: HeadSplit, rank: int) -> None:
    """Cut every key and value projection, which is whole, to the one KV head that this rank's query heads read."""
    head = split.kv_head(rank)
    for name, module in network.named_modules():
        if not name.endswith("self_attn"):
            continue
        for projection in (module.k_proj, module.v_proj):
            _keep_rows(projection, head, projection.out_features // split.kv_heads)
        module.num_key_value_groups = split.heads // split.ranks


def _keep_rows(linear: torch.nn.Linear, part: int, rows: int) -> None:
    kept = slice(part * rows, (part + 1) * rows)
    linear.weight = torch.nn.Parameter(linear.weight[kept].clone(), requires_grad=False)
    if linear.bias is not None:
        linear.bias = torch.nn.Parameter(linear.bias[kept].clone(), requires_grad=False)
    linear.out_features = rows


def _unsplittable(config: PreTrainedConfig, why: str) -> ModelError:
    return ModelError(
        f"model.path: {config.model_type} cannot be split over ranks: {why}; set tensor_parallel to 1"
    )
