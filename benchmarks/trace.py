"""What `trace_hashes` costs of a training step of a GPT, in processor time.

    python benchmarks/trace.py [--rounds 6]

Blocks of traced steps and of plain ones follow each other, so that both meet the same machine. The first step
of a block is left out: in it a trace says the parameters' names. Nothing is compared with a peer: PyTorch has
no such trace.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time

import warptape as wt
from warptape import nn, optim
from warptape.models import Decoder, DecoderConfig

STEPS = 3  # of a block, after the first


def gpt() -> Decoder:
    """4.3 million parameters."""
    sizes = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 5}
    kind = {"architecture": "gpt2", "norm": "layer_norm", "positions": "learned", "hidden_act": "gelu_new"}
    flags = dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "tie_word_embeddings"), True)
    limits = {"num_attention_heads": 8, "max_position_embeddings": 256}
    return Decoder(DecoderConfig(**sizes, **kind, **flags, **limits, gated=False))


def main() -> None:
    """Prints both medians and their ratio, with that of the fastest steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each kind")
    rounds = parser.parse_args().rounds
    wt.set_num_threads(1)
    wt.manual_seed(0)
    model = gpt()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    tokens = wt.randint(0, 256, (8, 257))
    times: dict[str, list[float]] = {"plain": [], "traced": []}

    def step() -> float:
        start = time.process_time()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    step()
    with tempfile.TemporaryDirectory() as folder:
        for block in range(2 * rounds):
            kind = ("plain", "traced")[block % 2]
            trace = wt.utils.trace_hashes(f"{folder}/{block}") if block % 2 else contextlib.nullcontext()
            with trace:
                step()
                times[kind] += [step() for _ in range(STEPS)]
    plain, traced = times["plain"], times["traced"]
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.1f} million parameters, {tokens[:, 1:].numel()} tokens a step, {len(plain)} steps")
    print(f"plain {statistics.median(plain):.3f} s, traced {statistics.median(traced):.3f} s of a processor")
    ratio = statistics.median(traced) / statistics.median(plain)
    print(f"traced / plain: {ratio:.3f} by medians, {min(traced) / min(plain):.3f} by the fastest")


if __name__ == "__main__":
    main()
