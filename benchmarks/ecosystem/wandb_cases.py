# /// script
# dependencies = ["wandb==0.31.0", "pillow", "numpy"]
# ///
"""Weights & Biases, offline: what a training run logs."""

import json
import tempfile
import warnings
from pathlib import Path

import torch
import wandb
from _cases import case, main

warnings.filterwarnings("ignore")


@case
def offline_run():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(project="p", dir=folder, mode="offline", config={"lr": 0.1})
        run.watch(model, log="all", log_freq=1)
        for _ in range(3):
            loss = (model(torch.randn(16, 4)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss, "weights": wandb.Histogram(model[0].weight.detach())})
        summary = dict(run.summary)
        files = sorted(p.suffix for p in Path(folder).rglob("*.wandb"))
        run.finish()
    names = sorted(name for name in summary if name.startswith("gradients/"))
    return (
        loss,
        summary["loss"],
        json.loads(json.dumps(summary["weights"], default=vars, sort_keys=True)),
        names,
        files,
    )


@case
def media_and_tables():
    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(project="p", dir=folder, mode="offline")
        image = wandb.Image(torch.rand(3, 8, 8), caption="one")
        table = wandb.Table(columns=["x", "y"], data=[[x.item(), (x**2).item()] for x in torch.arange(3.0)])
        run.log({"image": image, "table": table, "tensor": torch.arange(4.0), "scalar": torch.tensor(2.5)})
        scalar = run.summary["scalar"]
        found = (image.image.size, list(image.image.getdata()), table.data, scalar)
        run.finish()
    return found


if __name__ == "__main__":
    main()
