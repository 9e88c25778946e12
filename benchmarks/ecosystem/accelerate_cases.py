# /// script
# dependencies = ["accelerate==1.15.0", "transformers==5.23.0", "numpy", "safetensors"]
# ///
"""accelerate: one process, checkpoints, offloading by devices, and `accelerate launch` with two processes."""

import json
import os
import socket
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ACCELERATE_USE_CPU"] = "true"

import accelerate
import torch
from _cases import case, main
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def net():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def data(count=64):
    return TensorDataset(torch.randn(count, 8), torch.randint(4, (count,)))


def fit(accelerator, epochs=2, clip=None):
    model, optimizer, loader, schedule = prepared(accelerator)
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses, accelerator.unwrap_model(model).state_dict()


def prepared(accelerator):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    return accelerator.prepare(model, optimizer, loader, schedule)


@case
def one_process():
    accelerate.utils.set_seed(3)
    return fit(accelerate.Accelerator(), clip=0.5)


@case
def accumulated():
    return fit(accelerate.Accelerator(gradient_accumulation_steps=4))


@case(tolerance=2e-2)
def bfloat16():
    accelerate.state.AcceleratorState._reset_state(True)
    losses = fit(accelerate.Accelerator(mixed_precision="bf16"))[0]
    accelerate.state.AcceleratorState._reset_state(True)
    return losses


@case
def saved_state():
    """Weights, optimizer, schedule and generators of a checkpoint are those that were saved."""
    accelerator = accelerate.Accelerator()
    model, optimizer, *_ = prepared(accelerator)
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        files = sorted(os.listdir(folder))
        draws = torch.rand(3)
        nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.zeros(4, dtype=torch.int64)).backward()
        optimizer.step()
        changed = [p.detach().clone() for p in model.parameters()]
        accelerator.load_state(folder)
        accelerator.save_model(model, os.path.join(folder, "model"))
        files += sorted(os.listdir(os.path.join(folder, "model")))
    return (
        files,
        draws,
        torch.rand(3),
        changed,
        model.state_dict(),
        optimizer.state_dict()["param_groups"][0]["lr"],
    )


@case
def big_model():
    """Weights that a checkpoint brings into a model without any, and those on disk."""
    model, x = net(), torch.randn(2, 8)
    with accelerate.init_empty_weights():
        empty = net()
    kinds = [p.device.type for p in empty.parameters()]
    sizes = accelerate.utils.compute_module_sizes(empty)
    with tempfile.TemporaryDirectory() as folder:
        accelerate.Accelerator().save_model(model, folder)
        place = {"0": "cpu", "1": "cpu", "2": "disk"}
        loaded = accelerate.load_checkpoint_and_dispatch(
            empty, folder, device_map=place, offload_folder=folder
        )
        return kinds, sizes, model(x), loaded(x)


@case
def utilities():
    tree = {"a": torch.arange(3), "b": [torch.ones(2, 2)]}
    moved = accelerate.utils.send_to_device(tree, "cpu")
    skipped = [b.shape[0] for b in accelerate.skip_first_batches(DataLoader(torch.randn(10, 2), 4), 1)]
    found = accelerate.utils.find_batch_size(tree)
    padded = accelerate.Accelerator().pad_across_processes(torch.ones(2, 3), dim=1)
    return moved, skipped, found, accelerate.utils.concatenate([tree, tree]), padded


@case
def gathered_in_one_process():
    accelerator = accelerate.Accelerator()
    return (
        accelerator.gather_for_metrics(torch.arange(4)),
        accelerator.reduce(torch.ones(2)),
        accelerator.num_processes,
    )


RANK = """
import json, os, sys
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(5)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
rows = TensorDataset(torch.randn(40, 8), torch.randint(4, (40,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=4, shuffle=True))
losses = []
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).tolist())
seen = gather_object([accelerator.process_index])
summed = accelerator.reduce(torch.ones(2) * (accelerator.process_index + 1)).tolist()
padded = accelerator.pad_across_processes(torch.ones(2 + accelerator.process_index), dim=0).tolist()
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    weights = [p.detach().double().sum().item() for p in accelerator.unwrap_model(model).parameters()]
    kind = str(accelerator.distributed_type), type(model).__name__, accelerator.num_processes
    with open(sys.argv[1], "w") as file:
        json.dump([kind, losses, seen, summed, padded, weights], file)
accelerator.end_training()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@case
def launched_with_two_processes():
    with tempfile.TemporaryDirectory() as folder:
        script, out = os.path.join(folder, "rank.py"), os.path.join(folder, "out.json")
        with open(script, "w") as file:
            file.write(RANK)
        # --cpu would start one process, or several by mpirun. --multi_gpu takes torch.distributed.run, and
        # the script's Accelerator(cpu=True) makes the ranks CPU ranks.
        command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
        options = [
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--main_process_port",
        ]
        options.append(str(free_port()))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("ACCELERATE_USE_CPU", None)
        done = subprocess.run(
            [*command, *options, script, out], env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        with open(out) as file:
            result = json.load(file)
    assert result[0][2] == 2, f"the script ran as {result[0]}, not as two processes"
    return result


if __name__ == "__main__":
    main()
