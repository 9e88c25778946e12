"""Images: classes, masks, boxes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
import numpy as np
from _registry import batches, import_from, program, train


@program("resnet18", "kuangliu/pytorch-cifar ResNet18")
def _(clones: Path, work: Path) -> None:
    import torch

    model = import_from(clones / "pytorch-cifar", "models").ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, weight_decay=5e-4)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((4, 3, 32, 32), (10, (4,))))


@program("unet", "milesial/Pytorch-UNet")
def _(clones: Path, work: Path) -> None:
    import torch
    import torch.nn.functional as F

    model = import_from(clones / "Pytorch-UNet", "unet").UNet(3, 2)
    dice = import_from(clones / "Pytorch-UNet", "utils.dice_score").dice_loss
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-7, weight_decay=1e-8, momentum=0.999, foreach=True
    )

    def loss(image: Any, mask: Any) -> Any:
        found = model(image.to(dtype=torch.float32, memory_format=torch.channels_last))
        classes = F.one_hot(mask, 2).permute(0, 3, 1, 2).float()
        return F.cross_entropy(found, mask) + dice(F.softmax(found, dim=1).float(), classes, multiclass=True)

    train(model, optimizer, loss, batches((2, 3, 32, 32), (2, (2, 32, 32))))


@program("mlp_mixer", "lucidrains/mlp-mixer-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    mixer = import_from(clones / "mlp-mixer-pytorch", "mlp_mixer_pytorch")
    model = mixer.MLPMixer(image_size=64, channels=3, patch_size=16, dim=128, depth=4, num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((8, 3, 64, 64), (10, (8,))))


@program("yolov3", "eriklindernoren/PyTorch-YOLOv3 tiny")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision()
    _stubs.anything("imgaug")
    folder = clones / "PyTorch-YOLOv3"
    model = import_from(folder, "pytorchyolo.models").load_model(str(folder / "config/yolov3-tiny.cfg"))
    compute = import_from(folder, "pytorchyolo.utils.loss").compute_loss
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, weight_decay=5e-4)
    random = np.random.default_rng(1)

    def loss(image: Any) -> Any:
        places = random.uniform(0.2, 0.6, (6, 4))
        rows = np.concatenate([np.arange(6)[:, None] % 2, random.integers(0, 80, (6, 1)), places], 1)
        return compute(model(image), torch.from_numpy(rows).float(), model)[0]

    train(model, optimizer, loss, batches((2, 3, 64, 64)))


@program("detr", "facebookresearch/detr transformer, matcher and losses")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision()
    _stubs.module("torchvision.models._utils", IntermediateLayerGetter=None)
    _stubs.module("torchvision.ops.boxes", box_area=lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]))
    vision: Any = sys.modules["torchvision"]
    vision.__version__, vision._is_tracing = "0.20", lambda: False
    folder = clones / "detr"
    detr = import_from(folder, "models.detr")
    misc = import_from(folder, "util.misc")
    position = import_from(folder, "models.position_encoding").PositionEmbeddingSine(16, normalize=True)

    class Backbone(torch.nn.Module):
        num_channels = 16

        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Conv2d(3, 16, 8, stride=8)

        def forward(self, image: Any) -> Any:
            mask = torch.nn.functional.interpolate(image.mask[None].float(), scale_factor=1 / 8)[0].bool()
            found = misc.NestedTensor(self.body(image.tensors), mask)
            return [found], [position(found)]

    transformer = import_from(folder, "models.transformer").Transformer(32, 4, 2, 2, 64, 0.0)
    model = detr.DETR(Backbone(), transformer, num_classes=10, num_queries=8, aux_loss=False)
    matcher = import_from(folder, "models.matcher").HungarianMatcher(1, 5, 2)
    weights = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2}
    criterion = detr.SetCriterion(10, matcher, weights, eos_coef=0.1, losses=["labels", "boxes"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    random = np.random.default_rng(1)

    def loss(images: Any) -> Any:
        boxes = [torch.from_numpy(random.uniform(0.2, 0.5, (2, 4))).float() for _ in images]
        targets = [{"labels": torch.from_numpy(random.integers(0, 10, 2)), "boxes": b} for b in boxes]
        found = criterion(model(misc.nested_tensor_from_tensor_list(list(images))), targets)
        return sum(found[name] * weight for name, weight in weights.items())

    train(model, optimizer, loss, batches((2, 3, 64, 64)))


@program("u2net", "xuebinqin/U-2-Net small")
def _(clones: Path, work: Path) -> None:
    import torch

    model = import_from(clones / "U-2-Net", "model.u2net").U2NETP(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-8)
    entropy = torch.nn.functional.binary_cross_entropy
    loss = lambda image, mask: sum(entropy(found, mask.float()) for found in model(image))
    train(model, optimizer, loss, batches((2, 3, 64, 64), (2, (2, 1, 64, 64))))


@program("deeplab", "VainF/DeepLabV3Plus-Pytorch MobileNetV2")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.torchvision()
    network = import_from(clones / "DeepLabV3Plus-Pytorch", "network")
    model = network.modeling.deeplabv3plus_mobilenet(5, output_stride=16, pretrained_backbone=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4)
    loss = lambda image, mask: torch.nn.functional.cross_entropy(model(image), mask, ignore_index=255)
    train(model, optimizer, loss, batches((6, 3, 64, 64), (5, (6, 64, 64))))


@program("srresnet", "twtygqyy/pytorch-SRResNet")
def _(clones: Path, work: Path) -> None:
    import torch

    model = import_from(clones / "pytorch-SRResNet", "srresnet")._NetG()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    loss = lambda low, high: torch.nn.functional.mse_loss(model(low), high)
    train(model, optimizer, loss, batches((1, 3, 16, 16), (1, 3, 64, 64)))


def _vit(clones: Path, file: str, name: str, **sizes: Any) -> None:
    import torch

    _stubs.torchvision()
    model = getattr(import_from(clones / "vit-pytorch", f"vit_pytorch.{file}"), name)(**sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((4, 3, 32, 32), (10, (4,))))


SMALL = {"image_size": 32, "num_classes": 10}


@program("vit", "lucidrains/vit-pytorch ViT")
def _(clones: Path, work: Path) -> None:
    _vit(clones, "vit", "ViT", **SMALL, patch_size=8, dim=64, depth=2, heads=4, mlp_dim=128)


@program("cait", "lucidrains/vit-pytorch CaiT")
def _(clones: Path, work: Path) -> None:
    _vit(clones, "cait", "CaiT", **SMALL, patch_size=8, dim=64, depth=2, cls_depth=1, heads=4, mlp_dim=128)


@program("mobile_vit", "lucidrains/vit-pytorch MobileViT")
def _(clones: Path, work: Path) -> None:
    widths = [8, 16, 16, 16, 24, 24, 32, 32, 32, 32, 64]
    sizes = {"image_size": (64, 64), "dims": [32, 40, 48], "channels": widths, "num_classes": 10}
    import torch

    _stubs.torchvision()
    model = import_from(clones / "vit-pytorch", "vit_pytorch.mobile_vit").MobileViT(**sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((4, 3, 64, 64), (10, (4,))))


@program("nest", "lucidrains/vit-pytorch NesT")
def _(clones: Path, work: Path) -> None:
    sizes = {"patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 3, "block_repeats": (1, 1, 1)}
    _vit(clones, "nest", "NesT", **SMALL, **sizes)


@program("capsules", "gram-ai/capsule-networks layers")
def _(clones: Path, work: Path) -> None:
    import torch
    from torch.autograd import Variable

    capsules = import_from(clones / "capsule-networks", "capsule_network")
    # the program names it in its main part and asks for a GPU there
    capsules.Variable = lambda x: SimpleNamespace(cuda=lambda: Variable(x))
    layer = capsules.CapsuleLayer
    conv = torch.nn.Conv2d(1, 16, 9)
    first = layer(num_capsules=8, num_route_nodes=-1, in_channels=16, out_channels=4, kernel_size=9, stride=2)
    last = layer(num_capsules=10, num_route_nodes=4 * 6 * 6, in_channels=8, out_channels=16)
    model = torch.nn.Sequential(conv, torch.nn.ReLU(), first, last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss(image: Any, kind: Any) -> Any:
        lengths = model(image).squeeze().transpose(0, 1).square().sum(-1).sqrt()
        return torch.nn.functional.cross_entropy(lengths, kind)

    train(model, optimizer, loss, batches((4, 1, 28, 28), (10, (4,))))
