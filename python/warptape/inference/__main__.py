"""`warptape generate`, `chat`, `pack` and `serve`, also `python -m warptape.inference`: text from a model."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core import offered
from ..models import Decoder
from ..version import __version__
from . import LLM, SamplingParams
from .llm import DTYPES, load_model, prepare
from .packed_file import PACKED, save_packed
from .tokenizer import Tokenizer, has_tokenizer

MOST = 256  # tokens to be generated, unless the command line says how many
# How tokens are drawn where neither the command line nor the model's generation_config.json says it.
DRAWN: dict[str, Any] = {"max_tokens": MOST, "temperature": 0.8, "top_p": 0.95}
MODEL = "a GGUF file, or a folder with config.json, safetensors files and tokenizer.json"
ERRORS = (ValueError, OSError, ImportError, IndexError)  # what wrong input raises: one line, no traceback


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--tokenizer", help="a folder whose tokenizer is read; default: the model's")
    parser.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16")
    parser.add_argument("--quantization", help="int8, int4 or fp8")
    parser.add_argument("--max-model-len", type=int, help="tokens of prompt and answer")
    parser.add_argument("--seed", type=int, help="of the draws; default: another in each call")
    parser.add_argument("--max-tokens", type=int, help=f"to be generated; default: {MOST}, or what fits")
    said = "; default: as the model's generation_config.json says, else "
    parser.add_argument(
        "--temperature", type=float, help=f"0: the likeliest tokens{said}{DRAWN['temperature']}"
    )
    parser.add_argument(
        "--top-p", type=float, help=f"the likeliest tokens of this mass{said}{DRAWN['top_p']}"
    )
    parser.add_argument("--top-k", type=int, help=f"so many of the likeliest tokens{said}all")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line.

    Args:
        arguments: those of the process if None.
    """
    parser = argparse.ArgumentParser(prog="warptape", description="Generates text by a model in a folder.")
    parser.add_argument("--version", action="version", version=f"warptape {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="continue a text")
    _add_options(generate)
    generate.add_argument("prompt", nargs="?", help="default: standard input")
    _add_options(commands.add_parser("chat", help="talk to a model that has a chat template"))
    pack = commands.add_parser(
        "pack", help="write a model as a folder that loads by mapping one file, or as a GGUF file"
    )
    pack.add_argument("model", help=MODEL)
    pack.add_argument("out", help="the folder to be written, or a file whose name ends with .gguf")
    pack.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16")
    pack.add_argument(
        "--quantization", help="int8, int4 or fp8; of a GGUF file F32, F16, BF16, Q8_0, Q4_0 .."
    )
    commands.add_parser("serve", help="answer over HTTP and gRPC; see warptape serve --help", add_help=False)
    return parser.parse_args(arguments)


def load(options: argparse.Namespace) -> tuple[LLM, SamplingParams]:
    """The model and how its tokens are drawn.

    Args:
        options: of the command line.
    """
    flags = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
    given = {name: value for name, value in flags.items() if value is not None}
    SamplingParams(**given)  # wrong ones are told before a large model is loaded
    check_model(options.model)
    llm = LLM(
        options.model,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        quantization=options.quantization,
        max_model_len=options.max_model_len,
        max_num_seqs=1,
        seed=random.randrange(1 << 63) if options.seed is None else options.seed,
    )
    return llm, SamplingParams(**{**DRAWN, **llm.llm_engine.sampling_defaults, **given})


def check_model(path: str) -> None:
    """FileNotFoundError for what can be no model, with what one needs: nothing is downloaded.

    Args:
        path: of a folder or a GGUF file.
    """
    needed = "A model is a GGUF file, or a folder with config.json, model.safetensors and tokenizer.json"
    if not os.path.exists(path):
        near = (
            f"; huggingface_hub's `hf download {path} --local-dir FOLDER` gets one" if "." not in path else ""
        )
        raise FileNotFoundError(f"{path}: no such folder or file. {needed}. Nothing is downloaded{near}")
    if os.path.isdir(path) and not {"config.json", PACKED} & set(os.listdir(path)):
        raise FileNotFoundError(f"{path} has no config.json. {needed}")


def fitted(llm: LLM, params: SamplingParams, prompt: Any, options: argparse.Namespace) -> SamplingParams:
    """The parameters with as many tokens as there is room for, where the command line names no number.

    Args:
        llm: the model.
        params: as given.
        prompt: text or tokens.
        options: of the command line.
    """
    if options.max_tokens is not None:
        return params
    room = llm.llm_engine.max_model_len - len(llm.llm_engine.encode(prompt)[1])
    return replace(params, max_tokens=max(1, min(params.max_tokens or MOST, room)))


def write_stream(outputs: Iterator[Any]) -> str:
    """Writes an answer as it grows; returns it.

    Args:
        outputs: the answer, longer each time.
    """
    written = ""
    for output in outputs:
        text = output.outputs[0].text
        print(text[len(written) :], end="", flush=True)
        written = text
    print()
    return written


def generate(options: argparse.Namespace) -> None:
    """Continues a text.

    Args:
        options: of the command line.
    """
    llm, params = load(options)
    prompt = sys.stdin.read() if options.prompt is None else options.prompt
    write_stream(llm.stream(prompt, fitted(llm, params, prompt, options)))


def chat(options: argparse.Namespace) -> None:
    """Answers line by line until the end of input. Ctrl-C ends an answer.

    Args:
        options: of the command line.
    """
    llm, params = load(options)
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return
        messages.append({"role": "user", "content": line})
        answer = ""
        try:
            prompt = llm.conversation(messages)
            answer = write_stream(llm.stream(prompt, fitted(llm, params, prompt, options)))
        except KeyboardInterrupt:
            print()
        messages.append({"role": "assistant", "content": answer})


def pack(options: argparse.Namespace) -> None:
    """Writes a packed folder, or a GGUF file.

    Args:
        options: of the command line.
    """
    check_model(options.model)
    if options.out.endswith(".gguf"):
        write_gguf(options)
        return
    model = prepare(load_model(options.model, options.dtype), options.quantization, True)
    save_packed(model, options.out, options.model)
    print(f"{options.out}: {os.path.getsize(os.path.join(options.out, PACKED)) / 1e6:.1f} MB")


def write_gguf(options: argparse.Namespace) -> None:
    """Writes a GGUF file, with the model's tokenizer where it has one.

    Args:
        options: of the command line.
    """
    from .gguf_export import save_gguf

    dtype = None if options.dtype == "auto" else DTYPES.get(options.dtype, options.dtype)
    model = Decoder.from_pretrained(options.model, dtype=dtype)
    text = Tokenizer(options.model, model.config.vocab_size) if has_tokenizer(options.model) else None
    save_gguf(model, options.out, options.quantization, text)
    print(f"{options.out}: {os.path.getsize(options.out) / 1e6:.1f} MB")


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, or 1 with a line on standard error.

    Args:
        arguments: those of the process if None.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    if argv[:1] == ["serve"]:
        return offered("serve")(argv[1:])
    options = parse(argv)
    try:
        {"generate": generate, "chat": chat, "pack": pack}[options.command](options)
    except ERRORS as error:
        print(f"warptape: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
