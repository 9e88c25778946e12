"""Train a small GPT-2 shaped language model on the bytes of a text, and let it write some on the way.

    python examples/train_gpt.py                               sentences of a small English grammar
    python examples/train_gpt.py --data FILE_OR_FOLDER         any other text
    python examples/train_gpt.py --data stdlib --steps 800     the source of Python's standard library
    python examples/train_gpt.py --dtype bfloat16 --steps 2000
    python examples/train_gpt.py --resume                      go on from the last checkpoint under --out
    warptape-run --nproc-per-node 2 examples/train_gpt.py      share every batch among processes
    warptape-run --nproc-per-node 8 examples/train_gpt.py --dp 2 --tp 2 --pp 2 --zero 1     and the model
    warptape-run --nproc-per-node 4 examples/train_gpt.py --experts 8 --dp 4 --ep 4    and its experts

The entropy of the grammar is known, and no model's mean loss can be below it: it is printed beside the loss.
For other text the program prints how many bits xz needs.

Under --out it leaves checkpoint.pt, loss.png (where matplotlib is installed) and text.bin (the text, but for
a single file). With --dp, --cp, --tp, --pp, --ep or --zero the checkpoint is a folder, from which
--resume goes on with other numbers of these, too (--dp 1 in one process). A terminal shows a progress bar,
anything else gets lines. Wrong input ends with one line and exit code 2. Processes that --max-restarts starts
again go on from the last checkpoint.

Shapes: B batch, T block (bytes of context), C width, H heads, V vocabulary (the 256 bytes).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from gpt_text import LIBRARY, parts, reference
from warptape import nn, optim
from warptape.nn.parallel import DistributedDataParallel
from warptape.parallel.context import positions
from warptape.parallel.experts import MixtureOfExperts, update_biases

VOCABULARY = 256
LOG_EVERY = 10
WARMUP = 100
VALIDATION_BYTES = 1 << 17
SAMPLE = 140  # bytes
DTYPES = {"float32": wt.float32, "bfloat16": wt.bfloat16}
SHAPE = ("layers", "heads", "width", "block", "experts")  # the settings that a checkpoint's weights depend on
DEFAULTS: dict[str, Any] = {
    "steps": 600,
    "layers": 4,
    "heads": 4,
    "width": 128,
    "block": 64,
    "experts": 0,
    "batch": 16,
    "lr": 4e-3,
    "seed": 1337,
    "eval_every": 150,
    "dtype": "float32",
    "data": None,
}


class InputError(Exception):
    """What the user gave cannot be used; the message is the one line that is shown."""


def my_rank() -> tuple[int, int]:
    """This process's number among those that train together, and how many they are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


# ------------------------------------------------------------------------------------- model


class Attention(nn.Module):
    """Causal self-attention of several heads: [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, C / H]
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """One transformer layer with the norms before its two halves: [B, T, C] -> [B, T, C]. Of experts, if
    there are any, two work on a byte, as much as the one MLP would."""

    def __init__(self, width: int, heads: int, experts: int = 0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp: nn.Module = nn.Sequential(up, nn.GELU(approximate="tanh"), down)
        if experts:
            self.mlp = MixtureOfExperts(width, 4 * width // 3, experts, min(2, experts), balance="bias")

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """GPT-2 on bytes: tokens [B, T] -> logits [B, T, V]; the head shares the token embedding's weight."""

    def __init__(self, layers: int, heads: int, width: int, block: int, experts: int = 0) -> None:
        super().__init__()
        self.block = block
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(block, width)
        self.layers = nn.ModuleList(Block(width, heads, experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.start()

    @wt.no_grad()
    def start(self) -> None:
        """Random matrices as in GPT-2, biases of zero, waves as positions."""
        # GPT-2's 0.02 is for a width of 768; a narrow model learns faster from a larger start.
        std, depth = 0.05, 2 * len(self.layers)
        for name, parameter in self.named_parameters():
            # The two projections of a layer that add to the residual stream start smaller, as in GPT-2.
            into_residual = name.endswith(("attention.out.weight", "mlp.2.weight", "w_out"))
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=std / math.sqrt(depth) if into_residual else std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        # "Attention Is All You Need", section 3.5. The table is learned on; from noise it learns much slower.
        block, width = self.positions.weight.shape
        half = (width + 1) // 2
        lengths = wt.exp(wt.arange(half) * (-math.log(10000.0) / half))  # [C / 2]
        angles = wt.arange(block).unsqueeze(1) * lengths  # [T, C / 2]
        waves = wt.cat([angles.sin(), angles.cos()], dim=1)[:, :width]  # [T, C]
        self.positions.weight.copy_(waves * (std * math.sqrt(2.0)))

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        places = positions(tokens.shape[1], tokens.device)  # [T]
        x = self.tokens(tokens) + self.positions(places)  # [B, T, C]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, tokens: wt.Tensor, targets: wt.Tensor) -> wt.Tensor:
    """Mean cross-entropy in nats per byte, in float32 whatever the model computes in."""
    logits = model(tokens)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model: Any, lr: float, make: Any = optim.AdamW) -> Any:
    """AdamW in one fused call; weight decay on the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return make(groups, lr=lr, betas=(0.9, 0.98), fused=True)


def learning_rate(step: int, peak: float) -> float:
    """Rate of a step (counted from 1): a linear warm-up, then falling with the square root of the step.

    It does not depend on the number of steps, so that a run resumed for more of them stays on one curve.
    """
    return peak * min(step / WARMUP, math.sqrt(WARMUP / step))


def autocast(device: str, dtype: str) -> contextlib.AbstractContextManager[Any]:
    """Matrix products in bfloat16 where asked for; float32 needs no context."""
    if dtype == "float32":
        return contextlib.nullcontext()
    return wt.autocast(device.partition(":")[0], dtype=DTYPES[dtype])


def training_step(model: Any, optimizer: optim.AdamW, batch: tuple[wt.Tensor, ...], cast: Any) -> wt.Tensor:
    """One step on (inputs, targets), each [B, T]; returns the loss unread, so that a GPU need not wait."""
    with cast:
        loss = loss_of(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    update_biases(model)
    return loss.detach()


# -------------------------------------------------------------------------------------- text


def open_text(data: str | None, out: Path) -> np.ndarray:
    """The text as uint8 [bytes], mapped into memory; several files are first joined into out/text.bin."""
    source = Path(data) if data and data != LIBRARY else None
    if source and not source.exists():
        raise InputError(f"--data {source}: no such file or folder")
    if source and source.is_file():
        path = source
    else:
        path = out / "text.bin"
        if my_rank()[0] == 0:
            with atomic_file(path) as joined:
                joined.writelines(parts(data))
        if dist.is_initialized():
            dist.barrier()
    if path.stat().st_size == 0:
        raise InputError(f"--data {data}: the text is empty")
    return np.memmap(path, dtype=np.uint8, mode="r")


class Text:
    """The text in two parts: most of it to train on, its end to validate on."""

    def __init__(self, data: np.ndarray, block: int, device: str) -> None:
        if len(data) < 2 * (block + 1):
            raise InputError(
                f"the text has {len(data)} bytes; --block {block} needs at least {2 * (block + 1)}: a block "
                "and the byte after it to train on, and as many to validate on"
            )
        held_out = max(block + 1, min(len(data) // 10, VALIDATION_BYTES))
        self.train, self.validation = data[:-held_out], data[-held_out:]
        self.block, self.device, self.share = block, device, my_rank()

    def batch(self, size: int, generator: wt.Generator) -> tuple[wt.Tensor, wt.Tensor]:
        """This rank's share of random blocks, and the byte after each of theirs: two of [B, T], int64."""
        rank, ranks = self.share
        starts = wt.randint(len(self.train) - self.block, (size,), generator=generator).tolist()[rank::ranks]
        rows = np.stack([self.train[start : start + self.block + 1] for start in starts])
        tokens = wt.from_numpy(rows).to(self.device).long()
        return tokens[:, :-1], tokens[:, 1:]

    def validation_batches(self, size: int) -> Iterator[tuple[wt.Tensor, wt.Tensor]]:
        """The validation part block after block, no byte twice, as (inputs, targets) of at most [size, T]."""
        rows = (len(self.validation) - 1) // self.block
        inputs = self.validation[: rows * self.block].reshape(rows, self.block)
        targets = self.validation[1 : rows * self.block + 1].reshape(rows, self.block)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield tuple(wt.from_numpy(half[part].copy()).to(self.device).long() for half in (inputs, targets))


@wt.no_grad()
def validate(model: GPT, text: Text, batch: int, cast: Any) -> float:
    """Mean loss over the validation part, in nats per byte."""
    model.eval()
    total, rows = 0.0, 0
    for inputs, targets in text.validation_batches(4 * batch):
        with cast:
            total += loss_of(model, inputs, targets).item() * len(inputs)
        rows += len(inputs)
    model.train()
    return total / rows


@wt.no_grad()
def write(model: GPT, prompt: bytes, length: int, samples: int, seed: int, cast: Any) -> list[bytes]:
    """Let the model go on from the prompt: each next byte drawn from the 40 likeliest at temperature 0.8."""
    model.eval()
    device = model.tokens.weight.device
    generator = wt.Generator().manual_seed(seed)
    tokens = wt.tensor([list(prompt)] * samples, device=device)  # [samples, T]
    for _ in range(length):
        with cast:
            logits = model(tokens[:, -model.block :])[:, -1].float()  # [samples, V]
        likeliest, choices = logits.topk(40)
        odds = F.softmax(likeliest / 0.8, dim=-1).cpu()  # drawn on the CPU: the same bytes from every device
        drawn = wt.multinomial(odds, 1, generator=generator).to(device)
        tokens = wt.cat([tokens, choices.gather(1, drawn)], dim=1)
    return [bytes(row) for row in tokens.tolist()]


# -------------------------------------------------------------------------------- checkpoint


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Any]:
    """A file to write that takes its name only when it is whole, so that a crash leaves the one before it."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this script; anything else is an InputError."""
    if path.is_dir():
        raise InputError(
            f"--resume {path}: a folder goes with --dp, --tp, --pp or --zero; in one process --dp 1"
        )
    if not path.is_file():
        raise InputError(f"--resume {path}: no such file")
    try:
        state = wt.load(path, map_location="cpu")
        missing = {"settings", "step", "model", "optimizer", "generator", "history", "text"} - set(state)
        missing = missing or DEFAULTS.keys() - {"experts"} - set(state["settings"])
    except Exception as error:  # the file's bytes may be anything, and so may what reading them raises
        raise InputError(f"--resume {path}: cannot be read as a checkpoint ({one_line(error)})") from error
    if missing:
        raise InputError(f"--resume {path}: no checkpoint of this script, for want of {', '.join(missing)}")
    return state


def from_first(value: float) -> float:
    """The first rank's number, on every rank."""
    if not dist.is_initialized():
        return value
    shared = wt.tensor(value, dtype=wt.float64)
    dist.broadcast(shared, 0)
    return shared.item()


class Run:
    """Everything a step changes, so that a checkpoint of it resumes to the same curve, bit for bit."""

    def __init__(self, settings: dict[str, Any], device: str, text: np.ndarray, layout: Any = None) -> None:
        self.settings, self.step = settings, 0
        self.history: dict[str, list[list[float]]] = {"train": [], "validation": []}  # pairs of step and loss
        self.text_mark = [len(text), zlib.crc32(text)]
        from gpt_report import flops_per_byte

        wt.manual_seed(settings["seed"])
        self.model: Any = GPT(*(settings[name] for name in SHAPE)).to(device)
        self.parameters, self.flops = (
            sum(p.numel() for p in self.model.parameters()),
            flops_per_byte(self.model),
        )
        self.parallel, self.training_step, make = self.model, training_step, optim.AdamW
        self.spread: Any = None
        if layout is not None:
            self.spread = self.spread_out(layout, device)
            self.parallel, self.training_step = self.spread.parallel, self.spread.training_step
            self.model = None  # no rank keeps all of it
            make = functools.partial(self.parallel.optimizer, optim.AdamW)
        elif dist.is_initialized():
            self.parallel = DistributedDataParallel(self.model)
        self.optimizer = make_optimizer(self.parallel, settings["lr"], make)
        self.generator = wt.Generator().manual_seed(settings["seed"])  # draws the batches, on the CPU

    def spread_out(self, layout: dict[str, int], device: str) -> Any:
        from gpt_layouts import Spread

        try:
            return Spread(self.model, layout, self.settings["batch"], device)
        except ValueError as error:
            raise InputError(one_line(error)) from error

    def validate(self, text: Text, cast: Any) -> float:
        """The loss of the validation part, on every rank."""
        if self.spread is not None:
            return self.spread.validate(text, self.settings["batch"], cast)
        leads = my_rank()[0] == 0
        return from_first(validate(self.model, text, self.settings["batch"], cast) if leads else 0.0)

    def whole(self, device: str) -> Any:
        """The model of one process; of a split one, on the first rank. All ranks must call."""
        if self.spread is None:
            return self.model
        state = self.parallel.full_state_dict()
        if my_rank()[0]:
            return None
        model = GPT(*(self.settings[name] for name in SHAPE)).to(device)
        model.load_state_dict(state)
        return model

    def known(self) -> dict[str, Any]:
        """What is no tensor and no generator."""
        names = {"settings": self.settings, "step": self.step, "history": self.history}
        return {**names, "text": self.text_mark}

    def save(self, out: Path) -> None:
        if self.spread is not None:
            self.spread.save(out / "checkpoint", self.optimizer, self.generator, self.known())
        elif my_rank()[0] == 0:
            states = {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
            with atomic_file(out / "checkpoint.pt") as file:
                wt.save({**self.known(), **states, "generator": self.generator.get_state()}, file)

    def restore(self, state: dict[str, Any]) -> None:
        if self.spread is not None:
            self.spread.restore(state["path"], self.optimizer, self.generator)
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.generator.set_state(state["generator"])
        self.step, self.history = state["step"], state["history"]
        if list(state["text"]) != self.text_mark:
            print("note: the text is not the one of the checkpoint; the curve will differ", file=sys.stderr)


# -------------------------------------------------------------------------- the command line


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(message)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Train a small GPT on bytes of text.")

    def add(flag: str, kind: Any, what: str, **more: Any) -> None:
        default = DEFAULTS[flag[2:].replace("-", "_")]
        parser.add_argument(flag, type=kind, help=f"{what} (default: {default})", **more)

    add("--steps", int, "training steps in all, those of a resumed run included")
    add("--layers", int, "transformer layers")
    add("--heads", int, "attention heads; they divide the width")
    add("--width", int, "size of a token's vector")
    add("--block", int, "bytes of context")
    add("--experts", int, "experts in each layer's MLP, of which a byte takes two; 0 for one MLP")
    add("--batch", int, "blocks in a step")
    add("--lr", float, "highest learning rate")
    add("--seed", int, "seed of the weights, the batches and the samples")
    add("--eval-every", int, "steps between validations, each followed by a checkpoint")
    add("--dtype", str, "what matrix products are computed in", choices=sorted(DTYPES))
    parser.add_argument(
        "--data", help=f"a file or folder of text, or {LIBRARY} (default: a grammar's sentences)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("out/train_gpt"), help="folder to write to")
    path: dict[str, Any] = {"type": Path, "nargs": "?", "const": Path(), "metavar": "CHECKPOINT"}
    what = "go on from a checkpoint (default: the one under --out), with its settings where none are given"
    parser.add_argument("--resume", help=what, **path)
    for axis in ("--dp", "--cp", "--tp", "--pp"):
        parser.add_argument(axis, type=int, help="ranks along this axis (default: 1)")
    parser.add_argument("--ep", type=int, help="ranks of --dp and --cp that share out experts (default: 1)")
    parser.add_argument("--zero", type=int, choices=range(4), help="what --dp and --cp share (default: 0)")
    return parser.parse_args(arguments)


def layout_of(arguments: argparse.Namespace) -> dict[str, int] | None:
    """What is asked of gpt_layouts.py, if anything is."""
    axes = dict.fromkeys(("dp", "cp", "tp", "pp", "ep"), 1) | {"zero": 0}
    given = {name: getattr(arguments, name) for name in axes if getattr(arguments, name) is not None}
    return axes | given if given else None


def check(settings: dict[str, Any], ranks: int) -> None:
    for name in (*SHAPE, "steps", "batch", "eval_every"):
        least = int(name != "experts")
        if settings[name] < least:
            raise InputError(f"--{name.replace('_', '-')} {settings[name]}: must be at least {least}")
    if settings["width"] % settings["heads"]:
        raise InputError(f"--heads {settings['heads']} does not divide --width {settings['width']}")
    if settings["batch"] % ranks:
        raise InputError(f"--batch {settings['batch']}: does not divide among {ranks} processes")
    if not (0 < settings["lr"] < math.inf):
        raise InputError(f"--lr {settings['lr']}: must be a positive number")
    if not 0 <= settings["seed"] < 2**63:
        raise InputError(f"--seed {settings['seed']}: must be between 0 and 2**63 - 1")


def prepare(arguments: argparse.Namespace) -> tuple[Run, Text]:
    """Turn the command line into a run at its start, or at the checkpoint's step, and its text."""
    given = {name: getattr(arguments, name) for name in DEFAULTS if getattr(arguments, name) is not None}
    from gpt_layouts import is_there

    layout, restarts = layout_of(arguments), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    saved = arguments.out / ("checkpoint" if layout else "checkpoint.pt")
    again = restarts and (is_there(saved) if layout else saved.is_file())
    resume = saved if arguments.resume == Path() or again else arguments.resume
    if dist.is_initialized() and not restarts and resume != saved and my_rank()[0] == 0:
        # another run's, which a restart must not take up
        shutil.rmtree(saved, ignore_errors=True) if layout else saved.unlink(missing_ok=True)
    state = None
    if resume is not None:
        state = load_folder(resume) if layout else load_checkpoint(resume)
    known = state["settings"] if state else {}
    settings = {**DEFAULTS, **known, **given}
    for name in SHAPE if state else ():
        there = known.get(name, DEFAULTS[name])
        if settings[name] != there:
            raise InputError(f"--{name} {settings[name]}: the checkpoint has --{name} {there}")
    check(settings, 1 if layout else my_rank()[1])
    try:
        wt.zeros(1, device=arguments.device)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InputError(f"--device {arguments.device}: {one_line(error)}") from error
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        data = open_text(settings["data"], arguments.out)
    except OSError as error:
        raise InputError(one_line(error)) from error
    text = Text(data, settings["block"], arguments.device)
    run = Run(settings, arguments.device, data, layout)
    text.share = run.spread.share if layout else text.share
    if state:
        try:
            run.restore(state)
        except Exception as error:  # the file had the right names, and yet anything may be under them
            raise InputError(f"--resume: {one_line(error)}") from error
    return run, text


def load_folder(path: Path) -> dict[str, Any]:
    """What of a split run's checkpoint is no tensor; the rest Run.restore reads."""
    from gpt_layouts import read

    try:
        return read(path)
    except Exception as error:  # as in load_checkpoint
        raise InputError(f"--resume {path}: cannot be read as a checkpoint ({one_line(error)})") from error


def train(run: Run, text: Text, out: Path, peak: float, beside: tuple[str, float]) -> None:
    """Take the steps that are left, reporting, validating, saving and writing samples on the way."""
    from gpt_report import Progress

    settings, cast = run.settings, autocast(text.device, run.settings["dtype"])
    progress = Progress(run.step, settings["steps"], run.flops, peak)
    while run.step < settings["steps"]:
        run.step += 1
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.step, settings["lr"])
        batch = text.batch(settings["batch"], run.generator)
        loss = run.training_step(run.parallel, run.optimizer, batch, cast)
        progress.trained(settings["batch"] * settings["block"])
        last = run.step == settings["steps"]
        if run.step % LOG_EVERY == 0 or last:
            if dist.is_initialized():
                dist.all_reduce(loss, dist.ReduceOp.AVG)
            run.history["train"].append([run.step, loss.item()])
            progress.report(run.step, loss.item())
        if run.step % settings["eval_every"] == 0 or last:
            value = run.validate(text, cast)
            run.history["validation"].append([run.step, value])
            progress.validated(run.step, value, *beside)
            run.save(out)
        if run.step in {max(1, settings["steps"] // 16), settings["steps"] // 4, settings["steps"]}:
            model = run.whole(text.device)
            if model is not None:
                progress.sample(run.step, write(model, b"\n", SAMPLE, 1, settings["seed"], cast)[0])
                model.train()
        progress.resume_clock()
    progress.close()


def main(arguments: list[str] | None = None) -> int:
    from gpt_report import (
        machine_peak,
        plot,
        what_next,
    )  # here, so that the model can be had without the rest

    if dist.is_torchelastic_launched():
        dist.init_process_group()
    leads = my_rank()[0] == 0
    if not leads:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        options = parse(arguments)
        run, text = prepare(options)
    except InputError as error:
        if leads:
            print(f"train_gpt.py: {error}", file=sys.stderr)
        else:
            time.sleep(2)  # or the launcher would stop the first rank before it has said so
        return 2
    settings, out = run.settings, options.out
    peak = machine_peak(text.device, DTYPES[settings["dtype"]])
    beside = reference(settings["data"], text.validation, settings["block"])
    print(f"text: {len(text.train):,} bytes to train on, {len(text.validation):,} to validate on")
    print(f"model: {run.parameters:,} parameters, {settings['dtype']} on {text.device}")
    print(f"machine: peak {peak / 1e9:,.0f} GFLOP/s, {wt.get_num_threads()} threads", flush=True)
    try:
        train(run, text, out, peak, beside)
    except KeyboardInterrupt:
        print("train_gpt.py: interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    if dist.is_initialized():
        dist.destroy_process_group()
    if leads:
        print(plot(run.history, *beside, out / "loss.png"))
        print(what_next(options.out, settings["data"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
