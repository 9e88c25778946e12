"""Programs of several processes, which run.py starts as torchrun does: ranks on host memory.

Some ask for GPUs; torch.accelerator tells them of some that are the CPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
from _registry import batches, import_from, program, script


def _accelerators(count: int) -> None:
    import torch

    torch.accelerator.is_available = lambda *args, **kwargs: True
    torch.accelerator.device_count = lambda: count
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.device_index = lambda index: None
    init = torch.distributed.init_process_group
    # host memory has no index by which a group is bound to it
    torch.distributed.init_process_group = lambda *args, device_id=None, **kwargs: init(*args, **kwargs)


def _distributed(clones: Path, name: str, *arguments: str, **constants: Any) -> None:
    _accelerators(2)
    script(clones / "examples/distributed" / name, *arguments, **constants)


@program("tensor_parallel", "pytorch/examples tensor_parallel_example, 2 ranks", 2)
def _(clones: Path, work: Path) -> None:
    _distributed(clones, "tensor_parallelism/tensor_parallel_example.py", num_iters=22)


@program("sequence_parallel", "pytorch/examples sequence_parallel_example, 2 ranks", 2)
def _(clones: Path, work: Path) -> None:
    _distributed(clones, "tensor_parallelism/sequence_parallel_example.py", num_iters=22)


@program("fsdp2", "pytorch/examples FSDP2, 2 ranks", 2, steps=9)
def _(clones: Path, work: Path) -> None:
    import torch

    # The example leaves the values of its blocks to what memory held before.
    torch.nn.Module.to_empty = lambda self, device: self._apply(
        lambda t: torch.empty_like(t, device=device).normal_(0, 0.1)
    )
    os.chdir(work)
    _distributed(clones, "FSDP2/example.py", batch_size=4, seq_len=32)


@program("mingpt_ddp", "pytorch/examples minGPT-ddp, 2 ranks", 2)
def _(clones: Path, work: Path) -> None:
    import torch

    folder = clones / "examples/distributed/minGPT-ddp/mingpt"
    torch.distributed.init_process_group("gloo")
    package = import_from(folder, "model")
    sizes = {"vocab_size": 100, "block_size": 32, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    model = package.GPT(package.GPTConfig(model_type="gpt", n_layer=2, n_head=4, n_embd=64, **sizes))
    optimizer = package.create_optimizer(model, package.OptimizerConfig())
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for (x,) in batches((100, (4, 33)), seed=int(os.environ["RANK"])):
        optimizer.zero_grad()
        parallel(x[:, :-1], x[:, 1:].contiguous())[1].backward()
        optimizer.step()


def _picotron(clones: Path, **sizes: int) -> Any:
    """picotron's Llama, whose fused kernels are stood for by what they compute."""
    import torch

    os.environ |= {"DEVICE": "cpu", "DTYPE": "float32", "FLASH_ATTEN": "0", "CONTEXT_PARALLEL": "0"}
    parts = ["flash_attn_interface", "layers", "layers.rotary", "ops", "ops.triton", "ops.triton.layer_norm"]
    _stubs.anything("flash_attn", *(f"flash_attn.{part}" for part in parts))
    torch.distributed.init_process_group("gloo")
    folder = clones / "picotron"
    groups = import_from(folder, "picotron.process_group_manager")
    groups.setup_process_group_manager(
        **{**dict.fromkeys(("tp_size", "cp_size", "pp_size", "dp_size"), 1), **sizes}
    )
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"intermediate_size": 128, "vocab_size": 100, "rms_norm_eps": 1e-5, "max_position_embeddings": 32}
    settings = SimpleNamespace(**config, **more, rope_theta=10000.0)
    return import_from(folder, "picotron.model").Llama(settings)


def _train_picotron(model: Any, data: Any) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for (x,) in data:
        optimizer.zero_grad()
        if hasattr(model, "reset"):
            model.reset()  # its buckets
        found = model(x[:, :-1])
        torch.nn.functional.cross_entropy(found.flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()


@program("picotron_tp", "huggingface/picotron Llama, tensor parallel, 2 ranks", 2)
def _(clones: Path, work: Path) -> None:
    model = _picotron(clones, tp_size=2)
    parallel = import_from(clones / "picotron", "picotron.tensor_parallel.tensor_parallel")
    model = parallel.apply_tensor_parallel(model)
    model.reset_parameters()
    _train_picotron(model, batches((100, (4, 33))))


@program("picotron_dp", "huggingface/picotron Llama, data parallel by buckets, 2 ranks", 2)
def _(clones: Path, work: Path) -> None:
    model = _picotron(clones, dp_size=2)
    parallel = import_from(clones / "picotron", "picotron.data_parallel.data_parallel")
    _train_picotron(parallel.DataParallelBucket(model), batches((100, (4, 33)), seed=int(os.environ["RANK"])))
