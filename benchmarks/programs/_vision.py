"""Images: classes, masks, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
