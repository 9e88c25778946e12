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
from typing import Any

import warptape

from .. import nn
from .._tensor import Tensor
from ..distributed import functional
from ..models import Decoder
from ..models.adapters import Factors
from ..models.config import DecoderConfig
from ..parallel import parallelize_module
from ..parallel.tensor import ColwiseParallel, RowwiseParallel, Shard, divide

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def _plain(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """An nn.Linear of these values, which have no gradient."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


class SummedLinear(nn.Module):
    """[*, in / n] -> [*, out]: `part` has this rank's inputs; the ranks' products are summed, then the bias
    is added."""

    bias: Tensor | None

    def __init__(self, linear: Any, group: Any) -> None:
        super().__init__()
        self.part, self.group = _plain(linear.weight), group
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, input: Tensor) -> Tensor:
        """The same on every rank."""
        out = functional.all_reduce_pass_through(self.part(input), self.group)
        return out if self.bias is None else out + self.bias


class GatheredLinear(nn.Module):
    """[*, in] -> [*, out]: `part` has this rank's outputs, V' / n of them; those of all ranks follow each
    other, without the last V' - V."""

    def __init__(self, linear: Any, out_features: int, group: Any) -> None:
        super().__init__()
        self.part, self.out_features, self.group = _plain(linear.weight, linear.bias), out_features, group

    def forward(self, input: Tensor) -> Tensor:
        """The same on every rank."""
        return functional.all_gather_split(self.part(input), -1, self.group)[..., : self.out_features]


def _check(model: Decoder, ranks: int) -> None:
    """Raises what `split_` does."""
    for layer in (*model.layers.modules(), model.lm_head):
        coded = getattr(getattr(layer, "weight", None), "_is_coded", False)
        if coded or (not isinstance(layer, nn.Linear) and hasattr(layer, "out_features")):
            got = type(layer.weight if coded else layer).__name__
            raise NotImplementedError(
                f"tensor_parallel_size {ranks}: expected a model with nn.Linear layers of floats, got a "
                f"{got}; a model that is split, packed or stored in few bits cannot be split"
            )
    for name in _DIVIDED:
        value = getattr(model.config, name)
        if value % ranks:
            raise ValueError(
                f"tensor_parallel_size {ranks}: the model's {name} is {value}, which does not divide by it"
            )


def _pad_vocabulary(model: Decoder, ranks: int) -> None:
    """Gives embedding and head V' rows, the last ones zeros."""
    rows = -model.config.vocab_size % ranks
    if rows == 0:
        return
    with warptape.no_grad():
        for layer, size in ((model.embed_tokens, "num_embeddings"), (model.lm_head, "out_features")):
            padded = nn.functional.pad(layer.weight.detach(), (0, 0, 0, rows))
            layer.weight = nn.Parameter(padded, requires_grad=False)
            setattr(layer, size, padded.shape[0])
    model.tie_weights()


def _shards(config: DecoderConfig) -> dict[str, Shard]:
    """How the weights [O, I] of a whole model's linear layers lie on the ranks, by patterns of names."""
    heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    up = "gate_up_proj" if config.gated else "up_proj"
    return {
        "layers.*.self_attn.qkv_proj": Shard(0, tuple(n * config.head_dim for n in heads)),
        "layers.*.self_attn.o_proj": Shard(1),
        f"layers.*.mlp.{up}": Shard(0, 2 if config.gated else None),
        "layers.*.mlp.down_proj": Shard(1),
        "lm_head": Shard(0),
    }


def whole_config(model: Decoder) -> DecoderConfig:
    """The config of the model of which `model` is a rank's part, or is whole."""
    config: DecoderConfig = getattr(model, "config_of_whole", model.config)
    return config


def part_of_adapter(model: Decoder, name: str, factors: Factors) -> tuple[str, Factors]:
    """Which module of this rank's part of a model adds what of an adapter's factors for a layer: the rows of
    B where the layer's outputs are split; where its inputs are, the columns of A, before the sum over the
    ranks.
    """
    ranks = ranks_of(model)
    if ranks == 1:
        return name, factors
    group, shards = model.layers[0].self_attn.o_proj.group, _shards(whole_config(model))
    shard = next(shard for pattern, shard in shards.items() if fnmatchcase(name, pattern))
    part = shard.take(factors.a if shard.dim else factors.b, group.rank(), ranks)
    if shard.dim == 0:
        part = shard.padded(part, factors.b.shape[0], ranks)
    own = Factors(part, factors.b) if shard.dim else Factors(factors.a, part)
    inside = isinstance(model.get_submodule(name), (SummedLinear, GatheredLinear))
    return f"{name}.part" if inside else name, own


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
    config, up = model.config, "gate_up_proj" if model.config.gated else "up_proj"
    _pad_vocabulary(model, ranks)
    plan: dict[str, Any] = {
        "embed_tokens": RowwiseParallel(),
        "layers.*.self_attn": divide("heads", "kv_heads"),
    }
    for pattern, shard in _shards(config).items():
        plan[pattern] = RowwiseParallel() if shard.dim else ColwiseParallel(parts=shard.parts)
    parallelize_module(model, mesh, plan)
    group = mesh.get_group()
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        attention.qkv_proj = _plain(attention.qkv_proj.weight, attention.qkv_proj.bias)
        attention.o_proj = SummedLinear(attention.o_proj, group)
        setattr(mlp, up, _plain(getattr(mlp, up).weight, getattr(mlp, up).bias))
        mlp.down_proj = SummedLinear(mlp.down_proj, group)
    head: Any = GatheredLinear(model.lm_head, config.vocab_size, group)
    model.lm_head = head
    model.config_of_whole = config
    model.config = replace(config, **{name: getattr(config, name) // ranks for name in _DIVIDED})
    return model


def ranks_of(model: Any) -> int:
    """Among how many a model is split."""
    product = model.layers[0].self_attn.o_proj
    return product.group.size() if isinstance(product, SummedLinear) else 1
