"""What quantisation costs and gains: time of a static int8 ResNet-18 beside onnxruntime's, accuracy of the
digits net, loss of the byte GPT.

    python benchmarks/quantization.py resnet [--batch 1] [--threads 2]       needs onnx and onnxruntime
    python benchmarks/quantization.py digits                                  needs scikit-learn; trains 20
    epochs python examples/train_gpt.py --data stdlib --steps 800 --out run
    python benchmarks/quantization.py gpt run/checkpoint.pt
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import warptape as wt
import warptape.nn.functional as F
from warptape.ao import quantization as q

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


# ------------------------------------------------------------------------------------------- ResNet-18


def by_turns(
    works: dict[str, Callable[[], Any]], rounds: int, threads: int
) -> dict[str, tuple[float, float]]:
    """Least and median milliseconds of each, which take turns; a pause lets threads of one fall asleep. One
    thread's are CPU time, on which other programs have less influence."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(rounds + 2):
        for name, work in works.items():
            time.sleep(0.01)
            work()
            start = clock()
            work()
            if i >= 2:
                times[name].append((clock() - start) * 1e3)
    return {name: (min(t), float(np.median(t))) for name, t in times.items()}


def ort_sessions(model: Any, x: Any, data: list[Any], threads: int) -> dict[str, Callable[[], Any]]:
    """The model in onnxruntime, in float32 and quantised by its quantize_static, channel by channel."""
    import onnxruntime as ort
    from onnxruntime import quantization as ortq

    class Reader(ortq.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(data)

        def get_next(self) -> Any:
            batch = next(self.rest, None)
            return None if batch is None else {"x": batch.numpy()}

    folder = Path(tempfile.mkdtemp())
    plain, small = str(folder / "plain.onnx"), str(folder / "int8.onnx")
    wt.onnx.export(model, (x,), plain, input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}})
    ortq.shape_inference.quant_pre_process(plain, str(folder / "ready.onnx"), skip_symbolic_shape=True)
    ortq.quantize_static(
        str(folder / "ready.onnx"),
        small,
        Reader(),
        quant_format=ortq.QuantFormat.QDQ,
        per_channel=True,
        activation_type=ortq.QuantType.QUInt8,
        weight_type=ortq.QuantType.QInt8,
    )
    made = {}
    for name, path in (("onnxruntime float32", plain), ("onnxruntime int8", small)):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        made[name] = lambda session=session: session.run(None, {"x": x.numpy()})
    return made


def resnet_part(options: Any) -> bool:
    from _images import resnet

    wt.manual_seed(0)
    wt.set_num_threads(options.threads)
    model = resnet(wt, 18)
    with wt.no_grad():
        for _ in range(3):  # averages of batch norms
            model.train()(wt.randn(4, 3, 96, 96))
        model.eval()
        data = [wt.randn(2, 3, 224, 224) for _ in range(4)]
        x = wt.randn(options.batch, 3, 224, 224)
        prepared = q.prepare_fx(model, q.get_default_qconfig_mapping(), (x,))
        for batch in data:
            prepared(batch)
        small = q.convert_fx(prepared)
        last = copy.deepcopy(model).to(memory_format=wt.channels_last)
        x_last = x.contiguous(memory_format=wt.channels_last)
        frozen = wt.jit.freeze(wt.jit.trace(last, x_last))
        works: dict[str, Callable[[], Any]] = {
            "float32, eager, channels last": lambda: last(x_last),
            "float32, frozen, channels last": lambda: frozen(x_last),
            "int8": lambda: small(x),
            **ort_sessions(model, x, data, options.threads),
        }
        plain = model(x)
        error = float((small(x) - plain).norm() / plain.norm())
        theirs = wt.from_numpy(works["onnxruntime int8"]()[0])
        print(f"error of the logits: int8 {error:.4f}, onnxruntime int8 ", end="")
        print(f"{float((theirs - plain).norm() / plain.norm()):.4f}")
        found = by_turns(works, options.rounds, options.threads)
    for name, (least, median) in found.items():
        print(f"{name:32} least {least:7.2f} ms   median {median:7.2f} ms")
    ours = found["int8"][0]
    own = min(t[0] for name, t in found.items() if name.startswith("float32"))
    print(f"int8 / own float32 {ours / own:.2f} (at most 0.45), / onnxruntime int8 ", end="")
    print(f"{ours / found['onnxruntime int8'][0]:.2f} (at most 1)")
    return ours <= 0.45 * own and ours <= found["onnxruntime int8"][0]


# -------------------------------------------------------------------------------------------- digits


def train_digits(epochs: int = 20, seed: int = 0, batch: int = 64, lr: float = 8e-3) -> tuple[Any, Any, Any]:
    """The net of examples/train_digits.py trained as there, and its two sets."""
    from train_digits import DigitNet, load_digits, train

    data, test = load_digits(seed)
    wt.manual_seed(seed)
    model = DigitNet()
    train(model, data, epochs, lr, batch=batch)
    return model.eval(), data, test


@wt.no_grad()
def accuracy(model: Any, data: Any) -> float:
    """The share that the model names right."""
    images, labels = data.tensors
    return float((model.eval()(images).argmax(dim=1) == labels).float().mean())


def digits_part(options: Any) -> bool:
    model, train, test = train_digits()
    print(f"float32 {accuracy(model, test):.4f}")
    observers = {
        "min-max": q.MinMaxObserver.with_args(),
        "moving average": q.MovingAverageMinMaxObserver.with_args(),
        "percentile": q.PercentileObserver.with_args(),
        "histogram, MSE": q.HistogramObserver.with_args(),
        "histogram, KL": q.HistogramObserver.with_args(method="kl"),
    }
    within = True
    for name, observer in observers.items():
        qconfig = q.QConfig(observer, q.default_per_channel_weight_observer)
        prepared = q.prepare_fx(model, q.QConfigMapping().set_global(qconfig))
        with wt.no_grad():
            for images in train.tensors[0][:512].split(64):
                prepared(images)
        right = accuracy(q.convert_fx(prepared), test)
        within &= right >= 0.996
        print(f"int8, {name:16} {right:.4f}  at least 0.996")
    return within


# ------------------------------------------------------------------------------------------- byte GPT


def gpt_batches(text: Any, count: int, seed: int, block: int) -> Iterator[tuple[Any, Any]]:
    """Windows of the training text: tokens and the tokens behind them, [16, block]."""
    rng = np.random.default_rng(seed)
    data = text.train
    for _ in range(count):
        at = rng.integers(0, len(data) - block - 1, 16)
        window = np.stack([data[i : i + block + 1] for i in at]).astype(np.int64)
        yield wt.from_numpy(window[:, :-1].copy()), wt.from_numpy(window[:, 1:].copy())


def trained_on(model: Any, text: Any, steps: int, block: int) -> Any:
    """The model after more steps of training, the same for all."""
    optimizer = wt.optim.AdamW(model.train().parameters(), lr=2e-4)
    for x, y in gpt_batches(text, steps, 1, block):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def gpt_part(options: Any) -> bool:
    from export_gpt import decoder_of
    from train_gpt import Text, load_checkpoint, open_text, validate

    path = Path(options.checkpoint)
    state = load_checkpoint(path)
    model = decoder_of(state).eval()
    block = state["settings"]["block"]
    text = Text(open_text(state["settings"]["data"], path.parent), block, "cpu")

    def loss_of(m: Any) -> float:
        with wt.no_grad():
            return float(validate(m, text, 16, contextlib.nullcontext()))

    plain = loss_of(model)
    print(f"{'float32':34} {plain:.4f}")
    within, rises = True, {}

    def row(name: str, m: Any, bound: float | None = None) -> None:
        nonlocal within
        rises[name] = loss_of(m) - plain
        within &= bound is None or rises[name] <= bound
        limit = "" if bound is None else f"  at most {bound:.4f}"
        print(f"{name:34} {plain + rises[name]:.4f}  {rises[name]:+.4f}{limit}", flush=True)

    def quantized(config: Any, of: Any = None) -> Any:
        made = copy.deepcopy(of or model)
        q.quantize_(made, config)
        return made

    row("int8, a scale an output", quantized(q.Int8WeightOnlyConfig()), 0.002)
    row("int4, groups of 32", quantized(q.Int4WeightOnlyConfig(32)), 0.03)
    row("int4, groups of 128", quantized(q.Int4WeightOnlyConfig(128)))
    row("float8", quantized(q.Float8WeightOnlyConfig()))
    data = [x for x, _ in gpt_batches(text, 16, 0, block)]
    for bits in (4, 3):
        nearest = copy.deepcopy(model)
        q.round_to_nearest_(nearest, bits=bits, group_size=128)
        row(f"{bits} bits, groups of 128, nearest", nearest)
        gptq = copy.deepcopy(model)
        q.gptq_(gptq, data, bits=bits, group_size=128)
        row(f"{bits} bits, groups of 128, GPTQ", gptq, 0.6 * rises[f"{bits} bits, groups of 128, nearest"])
        awq = copy.deepcopy(model)
        q.awq_(awq, data, bits=bits, group_size=128)
        row(f"{bits} bits, groups of 128, AWQ", awq)
    smooth = copy.deepcopy(model)
    q.smooth_quant_(smooth, data)
    q.quantize_(smooth, q.Int8DynamicActivationInt8WeightConfig())
    row("int8, SmoothQuant", smooth, 0.002)
    base = q.Int4WeightOnlyConfig(128)
    longer = trained_on(copy.deepcopy(model), text, options.steps, block)
    plain = loss_of(longer)
    print(f"{'float32, trained on':34} {plain:.4f}", flush=True)
    row("int4, groups of 128, of this one", quantized(base, longer))
    rounded = copy.deepcopy(model)
    q.quantize_(rounded, q.QATConfig(base, step="prepare"))
    trained_on(rounded, text, options.steps, block)
    q.quantize_(rounded, q.QATConfig(base, step="convert"))
    row("int4, groups of 128, QAT", rounded, 0.01)
    return within


def main() -> int:
    """Prints the figures; the exit status says whether all are within their bounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("part", choices=("resnet", "digits", "gpt"))
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200, help="of training in the part gpt (default 200)")
    options = parser.parse_args()
    part = {"resnet": resnet_part, "digits": digits_part, "gpt": gpt_part}[options.part]
    return 0 if part(options) else 1


if __name__ == "__main__":
    sys.exit(main())
