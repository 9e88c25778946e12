# /// script
# dependencies = ["timm==1.0.31", "torchvision==0.28.0", "numpy"]
# ///
"""timm: models of ten families with random weights, trained and evaluated; features, losses, optimizers."""

import _cuda_linked  # noqa: F401  before what loads its ops
import timm
import torch
from _cases import case, main

# Without drop path, whose masks are random: small members of the families, at small sizes of images.
FAMILIES = {
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": 64},
    "convnext_atto": {},
    "efficientnet_b0": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": 64,
        "window_size": 4,
        "depths": (1, 1, 2, 1),
        "embed_dim": 24,
    },
    "mobilenetv3_small_050": {},
    "deit_tiny_patch16_224": {"img_size": 64},
    "beit_base_patch16_224": {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3},
    "regnetx_002": {},
    "mixer_s32_224": {"img_size": 64},
}


def trained(name, options):
    """Losses of two steps of SGD, and what the trained model says of other images."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, drop_path_rate=0.0, drop_rate=0.0, **options)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    x, y = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, model(x.flip(3)), str(sum(p.numel() for p in model.parameters()))


def family(name, options):
    def run():
        return trained(name, options)

    run.__name__ = name.split("_")[0]
    return case(run, tolerance=1e-3)  # batch norms of few numbers enlarge differences


for name, options in FAMILIES.items():
    family(name, options)


@case
def features():
    model = timm.create_model("resnet18", features_only=True, out_indices=(1, 2, 3)).eval()
    pooled = timm.create_model("convnext_atto", num_classes=0).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        return [f.mean((2, 3)) for f in model(x)], pooled(x), model.feature_info.channels()


@case
def losses_and_schedules():
    from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    out = [LabelSmoothingCrossEntropy(0.1)(x, y), SoftTargetCrossEntropy()(x, torch.eye(4)[y])]
    out.append(BinaryCrossEntropy(0.1)(x, y))
    for kind in ("sgd", "adamw", "lamb", "lion", "adafactor", "nadamw"):
        model = torch.nn.Linear(4, 3)
        with torch.no_grad():
            model.weight.copy_(torch.arange(12).view(3, 4) / 10)
        optimizer = create_optimizer_v2(model, kind, lr=1e-2, weight_decay=0.05)
        schedule = CosineLRScheduler(optimizer, t_initial=5, warmup_t=2, warmup_lr_init=1e-4)
        for epoch in range(4):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(epoch + 1)
        out.append((model.weight, optimizer.param_groups[0]["lr"]))
    return out


@case
def ema_and_mixup():
    from timm.data import Mixup
    from timm.utils import ModelEmaV3

    model = timm.create_model("test_vit", num_classes=4, img_size=32).eval()
    average = ModelEmaV3(model, decay=0.5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    average.update(model)
    x, y = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    mixed, targets = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=4)(x.clone(), y)
    with torch.no_grad():
        return average(x), mixed.mean((1, 2, 3)), targets


@case
def image_pipeline():
    import numpy
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    config = resolve_data_config({}, model=timm.create_model("resnet18"))
    image = Image.fromarray(numpy.arange(80 * 60 * 3, dtype=numpy.uint8).reshape(80, 60, 3))
    plain = create_transform(input_size=(3, 32, 32), is_training=False)(image)
    augmented = create_transform(input_size=32, is_training=True, auto_augment="rand-m6-n2", re_prob=0.5)(
        image
    )
    return str(config), plain, augmented


if __name__ == "__main__":
    main()
