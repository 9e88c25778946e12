# /// script
# dependencies = ["transformers==5.23.0", "accelerate==1.15.0", "numpy"]
# ///
"""Two ranks: transformers' tensor parallelism over DTensor, FullyShardedDataParallel, uneven inputs."""

import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers as hf
from _cases import case, main
from _tiny import DECODER, llama

TENSOR_PARALLEL = """
import json, sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto")
rank = torch.distributed.get_rank()
x = torch.arange(24).reshape(2, 12) * 7 % 90 + 3
optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x, labels=x).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kinds = sorted({type(p.data).__name__ for p in model.parameters()})
with torch.no_grad():
    words = model.generate(x[:1], max_new_tokens=8, do_sample=False).tolist()
model.save_pretrained(sys.argv[1] + "/saved")
torch.distributed.barrier()
if rank == 0:
    state = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/saved").state_dict()
    sums = {k: v.abs().sum().item() for k, v in state.items()}
    json.dump([losses, words, kinds, sums], open(sys.argv[2], "w"))
torch.distributed.destroy_process_group()
"""

SHARDED = """
import functools, json, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

dist.init_process_group("gloo")
rank = dist.get_rank()
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
model = FSDP(AutoModelForCausalLM.from_pretrained(sys.argv[1]), auto_wrap_policy=policy, use_orig_params=True,
             device_id=torch.device("cpu"))
x = (torch.arange(48).reshape(4, 12) * 7 % 90 + 3).chunk(2)[rank]
optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x, labels=x).loss
    loss.backward()
    norm = model.clip_grad_norm_(0.5)
    optimizer.step()
    losses.append([loss.item(), norm.item()])
state = {k: v.abs().sum().item() for k, v in model.state_dict().items()}
if rank == 0:
    json.dump([losses, state], open(sys.argv[2], "w"))
dist.destroy_process_group()
"""

UNEVEN = """
import json, sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
rows = torch.utils.data.TensorDataset(torch.randn(10, 4))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(rows, batch_size=2)
)
count = 0
with accelerator.join_uneven_inputs([model], even_batches=False):
    for (x,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        count += 1
counts = accelerator.gather(torch.tensor([count])).tolist()
if accelerator.is_main_process:
    json.dump([counts, [p.detach().tolist() for p in model.parameters()]], open(sys.argv[2], "w"))
accelerator.end_training()
"""


def launched(script, make=None):
    """What rank 0 of two wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "rank.py"), os.path.join(folder, "out.json")
        if make is not None:
            make().save_pretrained(folder)
        with open(path, "w") as file:
            file.write(script)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", path, folder, out]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        with open(out) as file:
            return json.load(file)


@case
def tensor_parallel_llama():
    return launched(TENSOR_PARALLEL, llama)


@case
def tensor_parallel_qwen3():
    return launched(TENSOR_PARALLEL, lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER, head_dim=8)))


@case
def sharded_llama():
    return launched(SHARDED, llama)


@case
def uneven_inputs():
    return launched(UNEVEN)


if __name__ == "__main__":
    main()
