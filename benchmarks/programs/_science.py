"""Graphs, differential equations, points and fields in space."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import _stubs
import numpy as np
from _registry import batches, cora, import_from, program, script, train


@program("pygcn", "tkipf/pygcn")
def _(clones: Path, work: Path) -> None:
    (work / "data").mkdir(exist_ok=True)
    (work / "run").mkdir(exist_ok=True)
    cora(work / "data")
    os.chdir(work / "run")
    sys.path.insert(0, str(clones / "pygcn"))
    script(clones / "pygcn/pygcn/train.py", "--dropout=0")


def _pygat(clones: Path, work: Path, *arguments: str) -> None:
    cora(work)
    (work / "data").mkdir(exist_ok=True)
    if not (work / "data/cora").exists():
        (work / "data/cora").symlink_to(work / "cora")
    (work / "run").mkdir(exist_ok=True)
    os.chdir(work / "run")
    folder = import_from(clones / "pyGAT", "utils")
    load = folder.load_data
    folder.load_data = lambda: load(path="../data/cora/")
    sizes = ["--hidden=4", "--nb_heads=2", "--dropout=0"]
    script(clones / "pyGAT/train.py", *sizes, *arguments)


@program("pygat", "Diego999/pyGAT")
def _(clones: Path, work: Path) -> None:
    _pygat(clones, work)


@program("pygat_sparse", "Diego999/pyGAT, sparse")
def _(clones: Path, work: Path) -> None:
    _pygat(clones, work, "--sparse")


def _ode(clones: Path, work: Path, name: str, *arguments: str) -> None:
    os.chdir(work)
    sys.path.insert(0, str(clones / "torchdiffeq"))
    script(clones / "torchdiffeq/examples" / name, *arguments)


@program("ode_demo", "rtqichen/torchdiffeq ode_demo")
def _(clones: Path, work: Path) -> None:
    _ode(clones, work, "ode_demo.py", "--data_size=100")


@program("ode_adjoint", "rtqichen/torchdiffeq ode_demo with the adjoint method")
def _(clones: Path, work: Path) -> None:
    _ode(clones, work, "ode_demo.py", "--data_size=100", "--adjoint")


@program("latent_ode", "rtqichen/torchdiffeq latent_ode")
def _(clones: Path, work: Path) -> None:
    _ode(clones, work, "latent_ode.py")


@program("cnf", "rtqichen/torchdiffeq cnf (continuous flow)")
def _(clones: Path, work: Path) -> None:
    _stubs.anything("sklearn")
    random = np.random.default_rng(0)

    def circles(n_samples: int, **kwargs: Any) -> Any:
        angle = random.uniform(0, 2 * np.pi, n_samples)
        return np.stack([np.cos(angle), np.sin(angle)], 1) + random.normal(0, 0.06, (n_samples, 2)), None

    _stubs.module("sklearn.datasets", make_circles=circles)
    _ode(clones, work, "cnf.py", "--adjoint", "--num_samples=32", "--width=8", "--hidden_dim=8")


@program("learn_physics", "rtqichen/torchdiffeq learn_physics (events)")
def _(clones: Path, work: Path) -> None:
    _ode(clones, work, "learn_physics.py", f"--save={work}")


@program("pointnet", "fxia22/pointnet.pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    model = import_from(clones / "pointnet.pytorch", "pointnet.model")
    net = model.PointNetCls(k=8, feature_transform=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-7, betas=(0.9, 0.999))

    def loss(points: Any, kind: Any) -> Any:
        found, _, feature = net(points)
        regular = model.feature_transform_regularizer(feature) * 0.001
        return torch.nn.functional.nll_loss(found, kind) + regular

    train(net, optimizer, loss, batches((8, 3, 64), (8, (8,))))


@program("nerf", "yenchenlin/nerf-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    class Parser(argparse.ArgumentParser):
        def add_argument(self, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("is_config_file", None)
            return super().add_argument(*args, **kwargs)

    _stubs.anything("imageio", "cv2")
    _stubs.module("configargparse", ArgumentParser=Parser)
    nerf = import_from(clones / "nerf-pytorch", "run_nerf")
    nerf.device = torch.device("cpu")
    arguments = ["--expname=a", f"--basedir={work}", "--N_samples=16", "--N_importance=16", "--netwidth=64"]
    sizes = ["--netwidth_fine=64", "--netdepth=4", "--netdepth_fine=4", "--use_viewdirs"]
    (work / "a").mkdir(exist_ok=True)
    args = nerf.config_parser().parse_args([*arguments, *sizes])
    settings, _, _, _, optimizer = nerf.create_nerf(args)
    settings |= {"near": 2.0, "far": 6.0}
    camera = np.array([[50.0, 0, 16], [0, 50, 16], [0, 0, 1]])
    for way, target in batches((64, 3), (64, 3)):
        rays = torch.stack([torch.zeros(64, 3), way])
        found, _, _, more = nerf.render(32, 32, camera, rays=rays, retraw=True, **settings)
        optimizer.zero_grad()
        (nerf.img2mse(found, target) + nerf.img2mse(more["rgb0"], target)).backward()
        optimizer.step()


@program("siren", "vsitzmann/siren image with gradients and Laplacians")
def _(clones: Path, work: Path) -> None:
    import torch

    folder = clones / "siren"
    _stubs.anything("torchmeta.datasets", "torchmeta.toy", "torchmeta.transforms", "torchmeta.utils")
    model = import_from(folder, "modules").SingleBVPNet(type="sine", hidden_features=32, num_hidden_layers=2)
    operators = import_from(folder, "diff_operators")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)

    def loss(points: Any, image: Any) -> Any:
        found = model({"coords": torch.tanh(points)})
        y, x = found["model_out"], found["model_in"]
        slopes = operators.gradient(y, x).square().mean() + operators.laplace(y, x).abs().mean() * 1e-3
        return (y - image).square().mean() + 1e-3 * slopes

    train(model, optimizer, loss, batches((1, 64, 2), (1, 64, 1)))


@program("kan", "Blealtan/efficient-kan mnist")
def _(clones: Path, work: Path) -> None:
    os.chdir(work)
    _stubs.torchvision(MNIST=_stubs.images(64 * 22, (1, 28, 28), 10))
    sys.path.insert(0, str(clones / "efficient-kan/src"))
    script(clones / "efficient-kan/examples/mnist.py")


@program("s4d", "state-spaces/s4 s4d")
def _(clones: Path, work: Path) -> None:
    import torch

    folder = clones / "s4"
    sys.path.insert(0, str(folder))
    s4d = import_from(folder, "models.s4.s4d").S4D
    layers = torch.nn.ModuleList([s4d(32, d_state=16, dropout=0.0) for _ in range(2)])
    last = torch.nn.Linear(32, 10)
    optimizer = torch.optim.AdamW([*layers.parameters(), *last.parameters()], lr=1e-3)

    def loss(x: Any, kind: Any) -> Any:
        for layer in layers:
            x = x + layer(x)[0]
        return torch.nn.functional.cross_entropy(last(x.mean(-1)), kind)

    train(layers, optimizer, loss, batches((4, 32, 128), (10, (4,))))


def _gat(clones: Path, number: int) -> None:
    """One of three ways to compute the same layers: by masked softmax (1 and 2), by edges (3)."""
    import torch

    _stubs.anything("torch.utils.tensorboard")
    folder, n = clones / "pytorch-GAT", 200
    kind = import_from(folder, "utils.constants").LayerType[f"IMP{number}"]
    model = import_from(folder, "models.definitions.GAT").GAT(2, [4, 1], [32, 8, 7], layer_type=kind)
    ends = np.random.default_rng(0).integers(0, n, (2, 5 * n))
    edges = torch.from_numpy(np.concatenate([ends, np.arange(n)[None].repeat(2, 0)], 1))
    mask = torch.full((n, n), -float("inf"))
    mask[edges[1], edges[0]] = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    graph = edges if number == 3 else mask
    loss = lambda x, y: torch.nn.functional.cross_entropy(model((x, graph))[0], y)
    train(model, optimizer, loss, batches((n, 32), (7, (n,))))


@program("gat_naive", "gordicaleksa/pytorch-GAT, implementation 1")
def _(clones: Path, work: Path) -> None:
    _gat(clones, 1)


@program("gat_masked", "gordicaleksa/pytorch-GAT, implementation 2")
def _(clones: Path, work: Path) -> None:
    _gat(clones, 2)


@program("gat_edges", "gordicaleksa/pytorch-GAT, implementation 3")
def _(clones: Path, work: Path) -> None:
    _gat(clones, 3)
