# /// script
# dependencies = ["torchvision==0.28.0", "pillow", "numpy"]
# ///
"""torchvision: models of its families, detectors, compiled ops, transforms and datasets of made-up images."""

import os
import tempfile

import _cuda_linked  # noqa: F401  before what loads its ops
import numpy
import torch
import torchvision
from _cases import case, main
from torchvision import models, ops
from torchvision.transforms import v2

DETECTORS = {"weights": None, "weights_backbone": None, "num_classes": 4}


def boxes(count, size=40.0):
    low = torch.rand(count, 2) * size
    return torch.cat([low, low + 2 + torch.rand(count, 2) * size / 2], 1)


def picture(height=48, width=64, seed=0):
    from PIL import Image

    noise = numpy.random.RandomState(seed).randint(0, 256, (height // 4, width // 4, 3), dtype=numpy.uint8)
    return Image.fromarray(noise.repeat(4, 0).repeat(4, 1))


# ---- the compiled ops ----------------------------------------------------------------------------------


@case
def suppression():
    out = []
    for count in (1, 20, 600, 3000):
        where, scores = boxes(count), torch.rand(count)
        out += [ops.nms(where, scores, t) for t in (0.0, 0.3, 0.7)]
        out.append(ops.batched_nms(where, scores, torch.randint(3, (count,)), 0.5))
    return out


@case
def aligned_regions():
    x = torch.randn(2, 6, 12, 16, requires_grad=True)
    where, out = [boxes(5), boxes(3)], []
    for ratio in (-1, 2):
        for aligned in (False, True):
            y = ops.roi_align(x, where, (3, 4), 0.25, ratio, aligned)
            out += [y, *torch.autograd.grad((y * y).sum(), x)]
    y = ops.roi_align(x.double(), [b.double() for b in where], 2)
    return [*out, y]


@case
def pooled_regions():
    x = torch.randn(2, 8, 12, 16, requires_grad=True)
    # Inside of the map: at its last row and column torchvision's gradient of ps_roi_pool counts other pixels
    # than the op itself.
    regions = torch.cat([torch.randint(2, (6, 1)).float(), boxes(6, 6.0)], 1)
    out = []
    for y in (
        ops.roi_pool(x, regions, (3, 2)),
        ops.ps_roi_align(x, regions, 2, 0.5, 2),
        ops.ps_roi_pool(x, regions, 2),
        ops.MultiScaleRoIAlign(["a"], 3, 2)({"a": x}, [boxes(3), boxes(2)], [(48, 64), (48, 64)]),
    ):
        out += [y, *torch.autograd.grad((y * y).sum(), x)]
    return out


@case
def deformed_convolutions():
    out = []
    for stride, padding, dilation, groups, with_mask in (
        (1, 1, 1, 1, True),
        (2, 0, 1, 2, False),
        (1, 2, 2, 1, True),
    ):
        conv = ops.DeformConv2d(4, 6, 3, stride, padding, dilation, groups)
        x = torch.randn(2, 4, 9, 8, requires_grad=True)
        side = [(s + 2 * padding - 2 * dilation - 1) // stride + 1 for s in (9, 8)]
        offset = torch.randn(2, 36, *side, requires_grad=True)
        mask = torch.rand(2, 18, *side, requires_grad=True) if with_mask else None
        y = conv(x, offset, mask)
        inputs = [x, offset, conv.weight, conv.bias, *([mask] if with_mask else [])]
        out += [y, *torch.autograd.grad((y * y).sum(), inputs)]
    return out


@case
def under_autocast():
    x, regions = torch.randn(1, 4, 8, 8, dtype=torch.bfloat16), torch.tensor([[0, 1.0, 1.0, 6.0, 5.0]])
    with torch.autocast("cpu"):
        y = ops.roi_align(x, regions, 2)
        kept = ops.nms(boxes(20).bfloat16(), torch.rand(20).bfloat16(), 0.5)
    return y, str(y.dtype), kept


@case
def boxes_and_losses():
    a, b = boxes(6), boxes(6)
    x, y = torch.randn(6, 3), torch.randint(2, (6, 3)).float()
    return [
        ops.box_iou(a, b), ops.generalized_box_iou(a, b),
        ops.distance_box_iou(a, b), ops.complete_box_iou(a, b),
        ops.box_convert(a, "xyxy", "cxcywh"), ops.clip_boxes_to_image(a, (30, 30)),
        ops.remove_small_boxes(a, 9.0),
        ops.sigmoid_focal_loss(x, y), ops.generalized_box_iou_loss(a, b),
        ops.complete_box_iou_loss(a, b), ops.distance_box_iou_loss(a, b),
        ops.masks_to_boxes(torch.rand(3, 8, 9) > 0.8),
    ]  # fmt: skip


@case
def layers():
    x = torch.randn(2, 8, 10, 12)
    parts = [
        ops.Conv2dNormActivation(8, 6), ops.SqueezeExcitation(8, 4), ops.MLP(12, [7, 5]),
        ops.FrozenBatchNorm2d(8),
        ops.DropBlock2d(0.0, 3), ops.StochasticDepth(0.0, "row"),
    ]  # fmt: skip
    pyramid = ops.FeaturePyramidNetwork([8, 8], 4)({"a": x, "b": x[..., ::2, ::2]})
    return [p(x) for p in parts], [*pyramid.values()]


# ---- models --------------------------------------------------------------------------------------------


def classifier(name, size=64, dtype=torch.float32, **options):
    """Losses of two steps of SGD, and what the model says of other images afterwards.

    In float64 where batch norms of few numbers, of images as small as these, enlarge float32's rounding.
    """

    def run():
        torch.manual_seed(0)
        model = getattr(models, name)(weights=None, num_classes=5, **options).to(dtype)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            if isinstance(part, ops.StochasticDepth):
                part.p = 0.0
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        x, y, losses = torch.randn(4, 3, size, size, dtype=dtype), torch.tensor([0, 1, 2, 3]), []
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            return losses, model(x.flip(3))

    run.__name__ = name
    return case(run, tolerance=1e-3 if dtype == torch.float32 else 1e-8)


IN_FLOAT32 = (
    "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0", "convnext_tiny",
    "swin_t", "swin_v2_t",
)  # fmt: skip
for name in IN_FLOAT32:
    classifier(name)
for name in ("mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "regnet_x_400mf", "densenet121"):
    classifier(name, dtype=torch.float64)
classifier("googlenet", dtype=torch.float64, init_weights=False, aux_logits=False)
classifier("vit_b_32", image_size=64)


@case
def segmentation():
    model = models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    deep = models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )
    x, out = torch.randn(2, 3, 64, 64), []
    for net in (model, deep):
        for part in net.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        y = net(x)["out"]
        loss = torch.nn.functional.cross_entropy(y, torch.zeros(2, 64, 64, dtype=torch.int64))
        loss.backward()
        out += [loss, y[..., ::8, ::8]]
    return out


@case
def video_and_flow():
    clip = torch.randn(1, 3, 4, 32, 32)
    flow = models.optical_flow.raft_small(weights=None).eval()
    with torch.no_grad():
        video = models.video.r3d_18(weights=None, num_classes=4).eval()(clip)
        return video, flow(torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128), 2)[-1][..., ::16, ::16]


@case
def feature_extraction():
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    model = models.resnet18(weights=None).eval()
    cut = create_feature_extractor(model, {"layer1": "low", "layer3": "high"})
    with torch.no_grad():
        out = cut(torch.randn(1, 3, 32, 32))
    return out["low"].mean(1), out["high"].mean(1), get_graph_node_names(model)[1][:12]


# ---- detectors -----------------------------------------------------------------------------------------


def targets(dtype, masks=False, keypoints=False):
    out = []
    for _ in range(2):
        one = {"boxes": boxes(3, 60.0).to(dtype), "labels": torch.randint(1, 4, (3,))}
        if masks:
            one["masks"] = (torch.rand(3, 96, 96) > 0.5).to(torch.uint8)
        if keypoints:
            one["labels"] = torch.ones(3, dtype=torch.int64)
            one["keypoints"] = torch.cat([torch.rand(3, 5, 2) * 60, torch.ones(3, 5, 1)], 2)
        out.append(one)
    return out


def detected(model, given):
    """Losses of a training step and norms of gradients, then means of boxes, labels and scores."""
    images = [torch.rand(2, 3, 96, 96, dtype=next(model.parameters()).dtype)[i] for i in range(2)]
    losses = model(images, given)
    sum(losses.values()).backward()
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None][:40]
    model.eval()
    with torch.no_grad():
        found = model(images)
    return (
        losses,
        norms,
        [{k: v[:5].float().mean(tuple(range(1, v.dim()))) for k, v in one.items()} for one in found],
    )


def detector(name, dtype=torch.float32, **options):
    def run():
        torch.manual_seed(0)
        sizes = {} if name.startswith("ssd") else {"min_size": 96, "max_size": 96}
        model = getattr(models.detection, name)(**{**DETECTORS, **sizes, **options})
        return detected(model.to(dtype), targets(dtype, "mask" in name, "keypoint" in name))

    run.__name__ = name
    return case(run, tolerance=2e-3)


detector("fasterrcnn_mobilenet_v3_large_320_fpn")
detector("maskrcnn_resnet50_fpn")
few = {"rpn_post_nms_top_n_train": 50, "rpn_post_nms_top_n_test": 50, "box_detections_per_img": 5}
detector("keypointrcnn_resnet50_fpn", torch.float64, num_classes=2, num_keypoints=5, **few)
detector("retinanet_resnet50_fpn")
detector("fcos_resnet50_fpn", torch.float64)
detector("ssdlite320_mobilenet_v3_large", torch.float64)


# ---- transforms, datasets, utilities -------------------------------------------------------------------


@case
def deterministic_transforms():
    image = torch.from_numpy(numpy.array(picture())).permute(2, 0, 1)
    f = v2.functional
    out = [
        f.resize(image, [20, 30]), f.resize(image, [70, 90], antialias=True), f.center_crop(image, [30, 30]),
        f.hflip(image), f.vflip(image), f.rotate(image, 30.0),
        f.pad(image, [1, 2, 3, 4], padding_mode="reflect"),
        f.affine(image, 10.0, [3, 4], 1.1, [5.0, 2.0]), f.gaussian_blur(image, [5, 5]),
        f.adjust_hue(image, 0.2),
        f.perspective(image, [[0, 0], [60, 0], [60, 40], [0, 40]], [[3, 2], [55, 4], [58, 39], [1, 36]]),
        f.adjust_brightness(image, 1.3), f.adjust_contrast(image, 0.7), f.adjust_saturation(image, 1.5),
        f.adjust_gamma(image, 0.8), f.adjust_sharpness(image, 1.7),
        f.posterize(image, 3), f.solarize(image, 99),
        f.equalize(image), f.autocontrast(image), f.invert(image), f.rgb_to_grayscale(image),
        f.normalize(f.to_dtype(image, torch.float32, True), [0.5] * 3, [0.2] * 3),
    ]  # fmt: skip
    return [o[:, ::5, ::5] for o in out]


@case
def random_transforms():
    from torchvision import tv_tensors

    image = tv_tensors.Image(torch.from_numpy(numpy.array(picture())).permute(2, 0, 1))
    where = tv_tensors.BoundingBoxes(boxes(3), format="XYXY", canvas_size=(48, 64))
    mask = tv_tensors.Mask((torch.rand(1, 48, 64) > 0.5).to(torch.uint8))
    out = []
    for transform in (
        v2.Compose(
            [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        ),
        v2.Compose([v2.RandomRotation(30), v2.ColorJitter(0.3, 0.3, 0.3, 0.1)]),
        v2.Compose([v2.RandomAffine(20, (0.1, 0.1)), v2.RandomPerspective(p=1.0)]),
        v2.Compose(
            [
                v2.RandomPhotometricDistort(p=1.0),
                v2.RandomZoomOut(p=1.0),
                v2.SanitizeBoundingBoxes(labels_getter=None),
            ]
        ),
        v2.Compose([v2.RandomIoUCrop(), v2.Resize((20, 20))]),
        v2.ElasticTransform(),
    ):
        a, b, c = transform(image, where, mask)
        out += [a[..., ::5, ::5], b, c[..., ::5, ::5], type(a).__name__, type(b).__name__]
    for policy in (v2.AutoAugment(), v2.RandAugment(), v2.TrivialAugmentWide(), v2.AugMix()):
        out.append(policy(image)[..., ::5, ::5])
    batch, labels = v2.MixUp(num_classes=3)(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    return [*out, batch, labels, *v2.CutMix(num_classes=3)(batch, torch.tensor([0, 1, 2, 0]))]


@case
def pillow_transforms():
    first = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(40),
            torchvision.transforms.RandomCrop(32),
            torchvision.transforms.ColorJitter(0.2, 0.2, 0.2),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((0.5,) * 3, (0.5,) * 3),
            torchvision.transforms.RandomErasing(p=1.0),
        ]
    )
    return first(picture())[:, ::3, ::3], v2.functional.to_image(picture())[:, ::7, ::7]


@case
def datasets():
    made = torchvision.datasets.FakeData(6, (3, 16, 16), 3, torchvision.transforms.ToTensor())
    loader = torch.utils.data.DataLoader(made, batch_size=3, shuffle=True)
    out = [(x.mean((2, 3)), y) for x, y in loader]
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cat", "dog"):
            os.makedirs(os.path.join(folder, kind))
            for i in range(2):
                picture(seed=i).save(os.path.join(folder, kind, f"{i}.png"))
        images = torchvision.datasets.ImageFolder(
            folder, v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, True)])
        )
        out += [images.classes, [(x.mean((1, 2)), y) for x, y in images]]
    return out


@case
def utilities():
    from torchvision import utils

    image = (torch.rand(3, 40, 40) * 255).to(torch.uint8)
    grid = utils.make_grid(torch.rand(5, 3, 8, 8), nrow=3, normalize=True)
    drawn = utils.draw_bounding_boxes(image, boxes(2, 15.0), colors=["red", "blue"])
    masked = utils.draw_segmentation_masks(image, torch.rand(2, 40, 40) > 0.5, colors=["red", "blue"])
    flow = utils.flow_to_image(torch.randn(2, 8, 8))
    return grid[:, ::3, ::3], drawn[:, ::3, ::3], masked[:, ::3, ::3], flow


if __name__ == "__main__":
    main()
