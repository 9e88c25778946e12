"""python -m warptape.parallel.plan: which layouts of a model fit on a cluster, and how long they take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .hardware import EFFICIENCY, GPUS, NETWORKS, PlanError
from .layout import PRECISIONS, Program
from .pictures import draw
from .planner import FIELDS, plan
from .shape import MODELS


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    out = argparse.ArgumentParser("warptape plan", description=__doc__)
    add = out.add_argument
    add("--model", required=True, help=f"{', '.join(MODELS)}; a config.json; or script.py:model")
    add("--gpus", required=True, type=int, help="how many")
    add("--gpu", default="h100", help=f"{', '.join(GPUS)}; or a .toml or .json file")
    add("--network", default="ndr400", help=f"{', '.join(NETWORKS)}; or a .toml or .json file")
    add("--seq", type=int, help="tokens of a sequence (the model's context)")
    add("--batch-tokens", type=float, default=4e6, help="of a step, over all GPUs (%(default)g)")
    add("--tokens", type=float, default=300e9, help="of the whole training (%(default)g)")
    add("--price", type=float, help="of a GPU for an hour (the GPU's)")
    add("--precision", default="bf16", choices=sorted(PRECISIONS))
    add("--efficiency", type=float, default=EFFICIENCY, help="of a large product (%(default)g, fitted)")
    add("--top", type=int, default=10, help="how many layouts are shown (%(default)s)")
    add(
        "--only",
        action="append",
        default=[],
        metavar="FIELD=VALUE[,VALUE]",
        help="try these alone: tp=8, zero=1,3",
    )
    add("--explain", action="store_true", help="every term of the best layout, with its formula and numbers")
    add("--scaling", action="store_true", help="1 to 10,000 GPUs, an extrapolation, and what stops it")
    add("--picture", metavar="FILE", help="time and memory by part, and the scaling, as .svg or .png")
    return out


def _only(given: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for each in given:
        name, equals, values = each.partition("=")
        if not equals or name not in FIELDS:
            raise PlanError(f"--only {each}: expected FIELD=VALUE, with a field of {', '.join(FIELDS)}")
        words = values.split(",")
        if name in ("schedule", "recompute"):
            out[name] = tuple(words)
        elif not all(word.isdigit() for word in words):
            raise PlanError(f"--only {each}: expected whole numbers")
        else:
            out[name] = tuple(bool(int(word)) if name == "sp" else int(word) for word in words)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was asked for; 2 and one line on stderr for what cannot be planned.

    Args:
        arguments: of the command line; those of the process if None.
    """
    args = parser().parse_args(arguments)
    try:
        if args.top < 1:
            raise PlanError(f"--top: expected at least 1, got {args.top}")
        planned = plan(
            args.model,
            args.gpus,
            args.gpu,
            args.network,
            sequence=args.seq,
            batch_tokens=args.batch_tokens,
            tokens=args.tokens,
            price=args.price,
            program=Program(args.precision),
            efficiency=args.efficiency,
            **_only(args.only),
        )
        print(planned.table(args.top))
        if args.explain:
            print("\n" + planned.explain())
        points = planned.scaling() if args.scaling or args.picture else None
        if args.scaling and points is not None:
            print("\nextrapolation: the best layout at each number of GPUs, for the same batch")
            for count, e in points:
                what = (
                    "fits in no layout"
                    if e is None
                    else f"{e.tokens_per_second:12.0f} tokens/s {e.mfu:6.1%}  {e.layout}"
                )
                print(f"{count:6d} {what}")
            print(planned.scaling_sentence(points))
        if args.picture:
            draw(planned, args.picture, points=points)
    except (PlanError, OSError) as error:
        print("plan: " + str(error).removeprefix("plan: ").replace("\n", " "), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
