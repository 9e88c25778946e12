"""Ways of learning: optimizers, low-rank adaptation, meta-learning, distillation, contrast."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
from _registry import batches, import_from, program, train


def _net() -> Any:
    """A small convolutional net, what each optimizer here trains."""
    from torch import nn

    first = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def _classify(make: Any) -> None:
    import torch

    model = _net()
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, make(model), loss, batches((8, 3, 16, 16), (10, (8,))))


@program("lion", "lucidrains/lion-pytorch")
def _(clones: Path, work: Path) -> None:
    lion = import_from(clones / "lion-pytorch", "lion_pytorch").Lion
    _classify(lambda model: lion(model.parameters(), lr=1e-5, weight_decay=1e-2))


@program("muon", "KellerJordan/Muon with Adam for what is no matrix")
def _(clones: Path, work: Path) -> None:
    muon = import_from(clones / "Muon", "muon").SingleDeviceMuonWithAuxAdam

    def make(model: Any) -> Any:
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        return muon(
            [
                {"params": matrices, "use_muon": True, "lr": 1e-3},
                {"params": others, "use_muon": False, "lr": 1e-4},
            ]
        )

    _classify(make)


@program("sophia", "Liuhong99/Sophia")
def _(clones: Path, work: Path) -> None:
    import torch

    sophia = import_from(clones / "Sophia", "sophia").SophiaG
    model = _net()
    optimizer = sophia(model.parameters(), lr=1e-4, rho=0.05)
    for x, y in batches((8, 3, 16, 16), (10, (8,))):
        found = model(x)
        torch.nn.functional.cross_entropy(found, y).backward()
        optimizer.step(bs=8)
        optimizer.zero_grad()
        drawn = torch.distributions.Categorical(logits=model(x)).sample()
        torch.nn.functional.cross_entropy(model(x), drawn).backward()
        optimizer.update_hessian()
        optimizer.zero_grad()


@program("sam", "davda54/sam")
def _(clones: Path, work: Path) -> None:
    import torch

    sam = import_from(clones / "sam", "sam").SAM
    model = _net()
    optimizer = sam(model.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    for x, y in batches((8, 3, 16, 16), (10, (8,))):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)


@program("minlora", "cccntu/minLoRA on a Transformer")
def _(clones: Path, work: Path) -> None:
    import torch
    from torch import nn

    lora = import_from(clones / "minLoRA", "minlora")
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), layer, nn.Linear(32, 50))
    lora.add_lora(model)
    optimizer = torch.optim.AdamW(lora.get_lora_params(model), lr=1e-2)
    entropy = nn.functional.cross_entropy
    loss = lambda x: entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    train(model, optimizer, loss, batches((50, (4, 17))))


@program("distillation", "haitongli/knowledge-distillation-pytorch CNN and ResNet")
def _(clones: Path, work: Path) -> None:
    import torch

    folder = clones / "knowledge-distillation-pytorch"
    net = import_from(folder, "model.net")
    teacher = import_from(folder, "model.resnet").ResNet18().eval()
    params = SimpleNamespace(num_channels=8, dropout_rate=0.0, alpha=0.9, temperature=4)
    student = net.Net(params)
    # an optimizer is what carries the same weights into both libraries
    torch.optim.SGD(teacher.parameters(), lr=0.0)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-4)

    def loss(x: Any, y: Any) -> Any:
        with torch.no_grad():
            shown = teacher(x)
        return net.loss_fn_kd(student(x), y, shown, params)

    train(student, optimizer, loss, batches((4, 3, 32, 32), (10, (4,))))


@program("simclr", "sthalles/SimCLR")
def _(clones: Path, work: Path) -> None:
    import torch

    os.chdir(work)
    writer = lambda: SimpleNamespace(log_dir=str(work), add_scalar=lambda *args, **kwargs: None)
    _stubs.module("torch.utils.tensorboard", SummaryWriter=writer)
    simclr = import_from(clones / "SimCLR", "simclr").SimCLR
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=22, eta_min=0, last_epoch=-1)
    settings = {"device": torch.device("cpu"), "batch_size": 8, "n_views": 2, "temperature": 0.07}
    more = {"fp16_precision": False, "log_every_n_steps": 100, "epochs": 2, "disable_cuda": True}
    args = SimpleNamespace(**settings, **more)
    draws = batches((8, 3, 16, 16), (8, 3, 16, 16))
    data = [(next(draws), None) for _ in range(22)]
    simclr(model=model, optimizer=optimizer, scheduler=scheduler, args=args).train(data)


@program("maml", "dragen1860/MAML-Pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    sizes = {"update_lr": 0.1, "meta_lr": 1e-3, "n_way": 5, "k_spt": 1, "k_qry": 3, "task_num": 4}
    more = {"update_step": 3, "update_step_test": 3, "imgc": 1, "imgsz": 28}
    first: list[Any] = [("conv2d", [16, 1, 3, 3, 2, 0]), ("relu", [True]), ("bn", [16])]
    second = [("conv2d", [16, 16, 3, 3, 2, 0]), ("relu", [True]), ("bn", [16])]
    config = [*first, *second, *second, ("flatten", []), ("linear", [5, 64])]
    meta = import_from(clones / "MAML-Pytorch", "meta").Meta(SimpleNamespace(**sizes, **more), config)
    kinds = torch.arange(5).repeat(4, 1)
    for shown, asked in batches((4, 5, 1, 28, 28), (4, 15, 1, 28, 28)):
        meta(shown, kinds, asked, kinds.repeat_interleave(3, 1))
