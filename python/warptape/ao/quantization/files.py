"""Folders of quantised decoders in the layouts of GPTQ (AutoGPTQ, GPTQModel) and AWQ (AutoAWQ, "gemm"), which
warptape.models, and with them LLM, read.

I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

import json
import os
from typing import Any, cast

from warptape import core as wt
from warptape.core import Tensor
from warptape.distributed.checkpoint import theirs_of
from warptape.models import Decoder
from warptape.models.pretrained import CONFIG
from warptape.models.quantized import AWQ_ORDER
from warptape.serialization.files import replace_file
from warptape.utils.safetensors import save_file

from ...core.coded import CodedTensor, QuantizedTensor


def pack_bits(codes: Tensor, bits: int, dim: int) -> Tensor:
    """Neighbours along dim, 32 / bits of them, in one int32 each, the first in its lowest bits.

    Args:
        codes: integers below 2^bits.
        bits: 4 or 8.
        dim: whose size 32 / bits divides.
    """
    codes = codes.movedim(dim, -1).to(wt.int32)
    apart = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    packed = wt.zeros(apart.shape[:-1], dtype=wt.int32)
    for i in range(32 // bits):
        packed = packed | (apart[..., i] << (bits * i))
    return packed.movedim(-1, dim).contiguous()


def zeros_of(name: str, weight: QuantizedTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes uint8 [O, I], scales and integer zeros [O, G]: w = scale * (code - zero).

    Raises: ValueError where a minimum is no multiple of its scale.
    """
    codes, scales, minima = weight.codes()
    if minima is None:
        zeros = wt.full_like(scales, 2 ** (weight.bits - 1))
    else:
        zeros = wt.round(-minima / scales)
        if not bool(((zeros * scales + minima).abs() <= 1e-3 * scales + 1e-3 * minima.abs()).all()):
            raise ValueError(
                f"{name}: its zeros are no integers, as these files have them; quantise by gptq_, awq_ or "
                "round_to_nearest_"
            )
    return codes, scales, zeros


def _gptq_parts(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, offset: int) -> dict[str, Tensor]:
    inputs = codes.shape[1]
    group = inputs // scales.shape[1]
    return {
        "qweight": pack_bits(codes.t(), bits, 0),
        "qzeros": pack_bits(zeros.t() - offset, bits, 1),
        "scales": scales.t().to(wt.float16).contiguous(),
        "g_idx": (wt.arange(inputs) // group).to(wt.int32),
    }


def _awq_parts(codes: Tensor, scales: Tensor, zeros: Tensor) -> dict[str, Tensor]:
    order = wt.tensor(AWQ_ORDER)

    def packed(x: Tensor) -> Tensor:
        mixed = x.reshape(x.shape[0], -1, 8)[:, :, order].reshape(x.shape[0], -1)
        return pack_bits(mixed, 4, 1)

    return {
        "qweight": packed(codes.t()),
        "qzeros": packed(zeros.t()),
        "scales": scales.t().to(wt.float16).contiguous(),
    }


def save_quantized(model: Decoder, folder: str | os.PathLike[str], method: str = "gptq") -> None:
    """Writes config.json and model.safetensors of a decoder that gptq_, awq_ or round_to_nearest_ quantised.

    Args:
        method: the layout: "gptq", or "awq" for 4 bits. Of GPTQ it is "gptq_v2" where a zero of 0 is among
            the weights, which the older one cannot tell from 16.

    Raises: TypeError for another model, ValueError for another method, for weights of several kinds and for
    those that the layout does not have. Nothing is written then.
    """
    if not isinstance(model, Decoder):
        raise TypeError(f"save_quantized: expected a warptape.models.Decoder, got {type(model).__name__}")
    if method not in ("gptq", "awq"):
        raise ValueError(f'save_quantized: method must be "gptq" or "awq", got {method!r}')
    own = {id(p): name for name, p in reversed(list(model.named_parameters()))}
    state: dict[str, Any] = {n: p for n, p in model.named_parameters() if own[id(p)] == n}
    weights = {n: p for n, p in state.items() if isinstance(p, CodedTensor)}
    kinds = {(p.bits, p.group) if isinstance(p, QuantizedTensor) else None for p in weights.values()}
    if len(kinds) != 1 or None in kinds:
        raise ValueError(
            "save_quantized: expected weights of one number of bits and one group, got "
            f"{sorted(map(str, kinds))}"
        )
    ((bits, group),) = kinds  # type: ignore[misc]
    if group == 0 or (method == "awq" and bits != 4):
        raise ValueError(f"save_quantized: {method} has no layout for {bits} bits in groups of {group}")
    with wt.no_grad():
        triples = {name: zeros_of(name, cast(QuantizedTensor, p.cpu())) for name, p in weights.items()}
        v2 = any(bool((zeros == 0).any()) for _, _, zeros in triples.values())
        names = model.name_map()
        out: dict[str, Tensor] = theirs_of({n: p for n, p in state.items() if n not in weights}, names)
        for name, triple in triples.items():
            apart = [theirs_of({name: part}, names) for part in triple]  # by rows, as projections are joined
            for full in apart[0]:
                turned = names.transposed(full.removeprefix(names.prefix))
                parts = [part[full].t().contiguous() if turned else part[full] for part in apart]
                one, scales, zeros = parts
                tensors = (
                    _awq_parts(one, scales, zeros)
                    if method == "awq"
                    else _gptq_parts(one, scales, zeros, bits, 0 if v2 else 1)
                )
                out.update({f"{full.removesuffix('weight')}{part}": t for part, t in tensors.items()})
    settings: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": group}
    if method == "awq":
        settings.update(version="gemm", zero_point=True)
    else:
        symmetric = all(bool((zeros == 2 ** (bits - 1)).all()) for _, _, zeros in triples.values())
        settings.update(
            desc_act=False, sym=symmetric, checkpoint_format="gptq_v2" if v2 else "gptq", damp_percent=0.01
        )
    config = {**model.config.to_hf(), "quantization_config": settings}
    config["dtype"] = config["torch_dtype"] = str(model.norm.weight.dtype).rpartition(".")[2]
    path = os.fspath(folder)
    os.makedirs(path, exist_ok=True)
    save_file(out, os.path.join(path, "model.safetensors"), {"format": "pt"})
    replace_file(os.path.join(path, CONFIG), [(json.dumps(config, indent=2) + "\n").encode()])
