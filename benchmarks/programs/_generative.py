"""Adversarial nets, diffusion, flows, discrete codes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import _stubs
from _registry import batches, import_from, program, script, train


def _gan(clones: Path, work: Path, name: str, shape: tuple[int, ...], *arguments: str) -> None:
    os.chdir(work)  # it makes folders
    _stubs.torchvision(MNIST=_stubs.images(16 * 44, shape, 10))
    folder = clones / "PyTorch-GAN/implementations" / name
    script(folder / f"{name}.py", "--batch_size=16", *arguments)


@program("wgan_gp", "eriklindernoren/PyTorch-GAN wgan_gp (gradient penalty)")
def _(clones: Path, work: Path) -> None:
    _gan(clones, work, "wgan_gp", (1, 28, 28))


@program("infogan", "eriklindernoren/PyTorch-GAN infogan")
def _(clones: Path, work: Path) -> None:
    _gan(clones, work, "infogan", (1, 32, 32))


@program("aae", "eriklindernoren/PyTorch-GAN aae")
def _(clones: Path, work: Path) -> None:
    _gan(clones, work, "aae", (1, 32, 32))


@program("cyclegan", "eriklindernoren/PyTorch-GAN cyclegan")
def _(clones: Path, work: Path) -> None:
    import torch

    os.chdir(work)
    _stubs.torchvision()
    _stubs.one_process()

    class Pairs(torch.utils.data.Dataset):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.a, self.b = next(batches((22, 3, 32, 32), (22, 3, 32, 32)))

        def __len__(self) -> int:
            return 22

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"A": self.a[i], "B": self.b[i]}

    from PIL import Image

    _stubs.module("datasets", ImageDataset=Pairs, Image=Image)
    sizes = ["--img_height=32", "--img_width=32", "--n_residual_blocks=2", "--lr=1e-7"]
    script(clones / "PyTorch-GAN/implementations/cyclegan/cyclegan.py", *sizes)


@program("superminddpm", "cloneofsimo/minDiffusion superminddpm")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision(MNIST=None)
    ddpm = import_from(clones / "minDiffusion", "superminddpm")
    model = ddpm.DDPM(eps_model=ddpm.DummyEpsModel(1), betas=(1e-4, 0.02), n_T=1000)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-6), model, batches((2, 1, 8, 8)))


@program("mindiffusion", "cloneofsimo/minDiffusion NaiveUnet")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision(CIFAR10=None)
    folder = clones / "minDiffusion"
    unet = import_from(folder, "mindiffusion.unet").NaiveUnet(3, 3, n_feat=32)
    model = import_from(folder, "mindiffusion.ddpm").DDPM(unet, betas=(1e-4, 0.02), n_T=1000)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-6), model, batches((4, 3, 32, 32)))


@program("tiny_diffusion", "tanelp/tiny-diffusion")
def _(clones: Path, work: Path) -> None:
    import torch

    os.chdir(work)
    data = torch.utils.data.TensorDataset(*next(batches((800, 2))))
    _stubs.module("datasets", get_dataset=lambda name: data)
    script(clones / "tiny-diffusion/ddpm.py")


@program("ddpm_lucid", "lucidrains/denoising-diffusion-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision()
    _stubs.anything(
        "accelerate", "ema_pytorch", "pytorch_fid", "pytorch_fid.inception", "pytorch_fid.fid_score"
    )
    package = import_from(clones / "denoising-diffusion-pytorch", "denoising_diffusion_pytorch")
    unet = package.Unet(dim=16, dim_mults=(1, 2, 4), flash_attn=False)
    model = package.GaussianDiffusion(unet, image_size=32, timesteps=1000)
    train(model, torch.optim.Adam(model.parameters(), lr=8e-5), model, batches((4, 3, 32, 32)))


@program("glow", "rosinality/glow-pytorch")
def _(clones: Path, work: Path) -> None:
    os.chdir(work)
    _stubs.torchvision(ImageFolder=_stubs.images(4 * 24, (3, 16, 16), 2, unit=True))
    _stubs.one_process()
    for folder in ("sample", "checkpoint"):
        (work / folder).mkdir(exist_ok=True)
    sizes = ["--batch=4", "--n_flow=4", "--n_block=2", "--img_size=16", "--n_sample=2"]
    script(clones / "glow-pytorch/train.py", *sizes, str(work))


@program("vqvae2", "rosinality/vq-vae-2-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    folder = clones / "vq-vae-2-pytorch"
    model = import_from(folder, "vqvae").VQVAE(channel=32, n_res_channel=16, embed_dim=16, n_embed=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scheduler = import_from(folder, "scheduler").CycleScheduler(
        optimizer, 3e-4, n_iter=100, momentum=None, warmup_proportion=0.05
    )

    def loss(image: Any) -> Any:
        out, latent = model(image)
        scheduler.step()
        return torch.nn.functional.mse_loss(out, image) + 0.25 * latent.mean()

    train(model, optimizer, loss, batches((2, 3, 32, 32)))


@program("normalizing_flows", "karpathy/pytorch-normalizing-flows (coupling, MAF, splines)")
def _(clones: Path, work: Path) -> None:
    import torch
    from torch.distributions import MultivariateNormal

    folder = clones / "pytorch-normalizing-flows"
    flows = import_from(folder, "nflib.flows")
    splines = import_from(folder, "nflib.spline_flows")
    prior = MultivariateNormal(torch.zeros(2), torch.eye(2))
    layers: list[Any] = [flows.ActNorm(2)]
    for i in range(2):
        layers += [flows.AffineHalfFlow(2, parity=i % 2), flows.MAF(2, parity=i % 2)]
        layers += [flows.Invertible1x1Conv(2), splines.NSF_CL(dim=2, K=8, B=3, hidden_dim=16)]
    model = flows.NormalizingFlowModel(prior, layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5)

    def loss(x: Any) -> Any:
        _, density, log_det = model(x)
        return -torch.sum(density + log_det)

    train(model, optimizer, loss, batches((128, 2)))
