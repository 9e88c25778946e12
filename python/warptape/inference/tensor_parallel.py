"""A decoder split among the ranks of a job, each with a part of the heads, of the MLPs and of the vocabulary.

"Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", section 3.
parallelize_module takes the parts; here they become plain nn.Linear modules, which pack_ and quantize_
replace, between the collectives.

n ranks; C width, H heads, K key heads, D head_dim, V vocabulary, V' the next multiple of n.
An adapter adds B A to a layer's weight [O, I]: A [R, I], B [O, R].
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import distributed, nn, parallel
from ..core import Tensor
from ..core.coded import CodedTensor
from ..core.placed import Placed
from ..models import Decoder
from ..models.config import DecoderConfig
from ..models.experts import Experts

if TYPE_CHECKING:
    from ..models.adapters import Factors

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
_OF_EXPERTS = ("width", "shared_width")


def _held(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter, a plain tensor on the same memory."""
    held: Tensor = (parameter.to_local() if isinstance(parameter, Placed) else parameter).detach()
    return held


def _plain(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """An nn.Linear of what this rank holds of these, which have no gradient."""
    held = _held(weight)
    linear = nn.Linear(held.shape[1], held.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(held, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(_held(bias), requires_grad=False)
    return linear


class SummedLinear(nn.Module):
    """[*, in / n] -> [*, out]: `part` has this rank's inputs; the ranks' products are summed, then the bias
    is added."""

    bias: Tensor | None

    def __init__(self, linear: nn.Module, group: Any) -> None:
        super().__init__()
        self.part, self.group = _plain(linear.weight), group
        self.register_buffer("bias", None if linear.bias is None else _held(linear.bias))

    def forward(self, input: Tensor) -> Tensor:
        """The same on every rank.

        Args:
            input: this rank's features.
        """
        out = distributed.functional.all_reduce_pass_through(self.part(input), self.group)
        return out if self.bias is None else out + self.bias


class GatheredLinear(nn.Module):
    """[*, in] -> [*, out]: `part` has this rank's outputs, V' / n of them; those of all ranks follow each
    other, without the last V' - V."""

    def __init__(self, linear: nn.Module, out_features: int, group: Any) -> None:
        super().__init__()
        self.part, self.out_features, self.group = _plain(linear.weight, linear.bias), out_features, group

    def forward(self, input: Tensor) -> Tensor:
        """The same on every rank.

        Args:
            input: the same on every rank.
        """
        return distributed.functional.all_gather_split(self.part(input), -1, self.group)[
            ..., : self.out_features
        ]


def _check(model: Decoder, ranks: int) -> None:
    """Raises what `split_` does."""
    for layer in (*model.layers.modules(), model.lm_head):
        coded = isinstance(getattr(layer, "weight", None), CodedTensor)
        if coded or (not isinstance(layer, nn.Linear) and hasattr(layer, "out_features")):
            got = type(layer.weight if coded else layer).__name__
            raise NotImplementedError(
                f"tensor_parallel_size {ranks}: expected a model with nn.Linear layers of floats, got a "
                f"{got}; a model that is split, packed or stored in few bits cannot be split"
            )
    if model.config.qk_norm == "all":
        raise NotImplementedError(
            f"tensor_parallel_size {ranks}: the model, {model.config.architecture}, norms queries and keys "
            "over all heads, and cannot be split by heads"
        )
    sizes = {name: getattr(model.config, name) for name in _DIVIDED}
    sizes |= {f"experts.{name}": getattr(model.config.experts, name, 0) for name in _OF_EXPERTS}
    for name, value in sizes.items():
        if value % ranks:
            raise ValueError(
                f"tensor_parallel_size {ranks}: the model's {name} is {value}, which does not divide by it"
            )


def _pad_vocabulary(model: Decoder, ranks: int) -> None:
    """Gives embedding and head V' rows, the last ones zeros."""
    rows = -model.config.vocab_size % ranks
    if rows == 0:
        return
    with wt.no_grad():
        for layer, size in ((model.embed_tokens, "num_embeddings"), (model.lm_head, "out_features")):
            padded = nn.functional.pad(layer.weight.detach(), (0, 0, 0, rows))
            layer.weight = nn.Parameter(padded, requires_grad=False)
            setattr(layer, size, padded.shape[0])
    model.tie_weights()


def _shards(config: DecoderConfig) -> dict[str, parallel.tensor.Shard]:
    """How the weights [O, I] of a whole model's linear layers lie on the ranks, by patterns of names."""
    heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    rows = None if config.qkv_by_head else tuple(n * config.head_dim for n in heads)
    shard, attention, mlp = parallel.tensor.Shard, "layers.*.self_attn", "layers.*.mlp"
    shards = {
        f"{attention}.qkv_proj": shard(0, rows),
        **{
            f"{attention}.{projection}_proj": shard(0) for projection in ("q", "q_b", "kv_b")
        },  # latent attention's
        f"{attention}.o_proj": shard(1),
        f"{mlp}.up_proj": shard(0),
        f"{mlp}.gate_up_proj": shard(0, 2),
        f"{mlp}.down_proj": shard(1),
        "lm_head": shard(0),
    }
    if config.experts is not None:
        parts = config.experts.count * (1 if config.experts.alternating else 2)
        shards[f"{mlp}.experts.gate_up_proj"] = shard(0, parts)
        shards[f"{mlp}.experts.down_proj"] = shard(1)
        shards[f"{mlp}.shared_mlp.gate_up_proj"] = shard(0, 2)
        shards[f"{mlp}.shared_mlp.down_proj"] = shard(1)
    return shards


def _shard_of(name: str, shards: dict[str, parallel.tensor.Shard]) -> parallel.tensor.Shard | None:
    """Of a layer; None for one that all ranks have whole, as a router."""
    return next((shard for pattern, shard in shards.items() if fnmatchcase(name, pattern)), None)


def full_config(model: Decoder) -> DecoderConfig:
    """The config of the model of which `model` is a rank's part, or is whole.

    Args:
        model: whole, or a part.
    """
    config: DecoderConfig = getattr(model, "config_of_full_model", model.config)
    return config


def shard_of_adapter(model: Decoder, name: str, factors: Factors) -> tuple[str, Factors]:
    """Which module of this rank's part of a model adds what of an adapter's factors for a layer: the rows of
    B where the layer's outputs are split; where its inputs are, the columns of A, before the sum over the
    ranks.
    """
    ranks = ranks_of(model)
    if ranks == 1:
        return name, factors
    group, shards = model.layers[0].self_attn.o_proj.group, _shards(full_config(model))
    if (shard := _shard_of(name, shards)) is None:
        return name, factors
    part = shard.take(factors.a if shard.dim else factors.b, group.rank(), ranks)
    if shard.dim == 0:
        part = shard.padded(part, factors.b.shape[0], ranks)
    own = factors._replace(a=part) if shard.dim else factors._replace(b=part)
    inside = isinstance(model.get_submodule(name), (SummedLinear, GatheredLinear))
    return f"{name}.part" if inside else name, own


def shard_of_weight(model: Any, name: str, whole: Tensor) -> Tensor:
    """What this rank's part of a model holds of a weight.

    Args:
        model: whole, or a part.
        name: of the weight in the whole model.
        whole: the weight.
    """
    ranks, (layer, _, last) = ranks_of(model), name.rpartition(".")
    if ranks == 1:
        return whole
    rank: int = model.layers[0].self_attn.o_proj.group.rank()
    if last == "sinks":
        return whole.chunk(ranks)[rank]
    shard = parallel.tensor.Shard(0)
    if layer != "embed_tokens":
        layer_shard = _shard_of(layer, _shards(full_config(model)))
        if layer_shard is None:
            return whole
        shard = layer_shard
    if last == "bias" and shard.dim == 1:
        # Added to the sum, but for those of experts, which the first rank adds before.
        return wt.zeros_like(whole) if rank and ".experts." in name else whole
    part = shard.take(whole, rank, ranks)
    return shard.padded(part, whole.shape[0], ranks) if shard.dim == 0 else part


def split_(model: Decoder, mesh: Any) -> Decoder:
    """Leaves this rank's part of a model that all ranks of a mesh of one axis have alike; returns it.

    `config` then has the numbers of heads, key heads and intermediate features of the part, by which caches
    are made. No collective runs here.

    Raises: ValueError, before anything is changed, where heads, key heads or intermediate features do not
    divide; NotImplementedError for layers that are packed or quantised already.
    """
    ranks = mesh.size()
    if ranks == 1:
        return model
    _check(model, ranks)
    config, shards = model.config, _shards(model.config)
    _pad_vocabulary(model, ranks)
    plan: dict[str, Any] = {
        "embed_tokens": parallel.tensor.RowwiseParallel(),
        "layers.*.self_attn": parallel.tensor.divide("heads", "kv_heads"),
    }
    rows, columns = parallel.tensor.RowwiseParallel, parallel.tensor.ColwiseParallel
    split = {name: shard for name, _ in model.named_modules() if (shard := _shard_of(name, shards))}
    for name, shard in split.items():
        plan[name] = rows() if shard.dim else columns(parts=shard.parts)
    parallel.parallelize_module(model, mesh, plan)
    group = mesh.get_group()
    for name, shard in split.items():
        if name != "lm_head":
            _replace(model, name, shard, group)
    for layer in model.layers:
        attention = layer.self_attn
        if attention.sinks is not None:
            own = attention.sinks.detach().chunk(ranks)[group.rank()]
            attention.sinks = nn.Parameter(own.clone(), requires_grad=False)
    head: Any = GatheredLinear(model.lm_head, config.vocab_size, group)
    model.lm_head = head
    model.config_of_full_model = config
    parts: dict[str, Any] = {name: getattr(config, name) // ranks for name in _DIVIDED}
    if (experts := config.experts) is not None:
        parts["experts"] = replace(experts, **{name: getattr(experts, name) // ranks for name in _OF_EXPERTS})
    model.config = replace(config, **parts)
    return model


def _replace(model: Decoder, name: str, shard: parallel.tensor.Shard, group: Any) -> None:
    """Puts a plain layer of this rank's part in place of one that is split."""
    parent_name, _, last = name.rpartition(".")
    parent, layer = model.get_submodule(parent_name), model.get_submodule(name)
    replacement: Any = _plain(layer.weight, layer.bias) if shard.dim == 0 else None
    if replacement is None and isinstance(parent, Experts):
        # Summed once for all experts of a token, and so with the first rank's biases alone.
        replacement = _plain(layer.weight, layer.bias)
        if replacement.bias is not None and group.rank():
            replacement.bias = nn.Parameter(wt.zeros_like(replacement.bias), requires_grad=False)
        parent.joined = partial(distributed.functional.all_reduce_pass_through, group=group)
    setattr(parent, last, SummedLinear(layer, group) if replacement is None else replacement)


def ranks_of(model: Any) -> int:
    """Among how many a model is split.

    Args:
        model: whole, or a part.
    """
    product = model.layers[0].self_attn.o_proj
    return product.group.size() if isinstance(product, SummedLinear) else 1
