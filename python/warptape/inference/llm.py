"""A folder with a model, and texts out of it: vLLM's LLM."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from warptape import core as wt

from .. import nn
from ..models import Decoder
from ..models.families import VISION_LANGUAGE
from ..models.pretrained import CONFIG, read_json
from .engine import EngineArgs, LLMEngine, Prompt
from .generation_config import end_tokens, sampling_defaults
from .linear import QuantLinear, float8_, pack_, quantize_
from .outputs import RequestOutput
from .pipeline_parallel import mesh_of, stage_
from .sampling_params import RequestOutputKind, SamplingParams
from .tensor_parallel import split_
from .tokenizer import Tokenizer

DTYPES = {"float32": wt.float32, "bfloat16": wt.bfloat16}
_INTEGERS = {"int8": (8, 0), "int4": (4, 32)}  # name -> bits, group
QUANTIZATIONS = (*_INTEGERS, "fp8")
# Layers that stay floating: errors of the head are those of the result, a router's choose other experts.
_FLOATING = ("lm_head", "head", "pooler", "router", "shared_gate")


def prepare(
    model: Decoder, quantization: str | None, invariant: bool, ranks: int = 1, stages: int = 1
) -> Decoder:
    """The model with weights packed for inference; its linear layers are replaced in place.

    Args:
        quantization, invariant: see LLM and EngineArgs.
        ranks, stages: tensor_ and pipeline_parallel_size; the model becomes this rank's part.

    Raises: ValueError for another quantization and weights of another dtype than DTYPES, and what
    `mesh_of`, `split_` and `stage_` raise.
    """
    if invariant and model.embed_tokens.weight.dtype not in DTYPES.values():
        raise ValueError(
            f"the weights are {model.embed_tokens.weight.dtype}, but the engine's kernels have "
            f"{' and '.join(DTYPES)}; give one of these as dtype"
        )
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be None or one of {sorted(QUANTIZATIONS)}, got {quantization!r}")
    if ranks * stages > 1:
        mesh = mesh_of(model, ranks, stages)
        split_(model, mesh if stages == 1 else mesh["tensor"])
        if stages > 1:
            stage_(model, mesh.get_group("pipeline"))
    if quantization == "fp8":
        float8_(model, _FLOATING)
    elif quantization is not None:
        bits, group = _INTEGERS[quantization]
        quantize_(model, bits, group, _FLOATING)
    if invariant:
        pack_(model)
    return model


def load_model(
    folder: str | os.PathLike[str],
    dtype: Any = "auto",
    quantization: str | None = None,
    invariant: bool = True,
) -> Any:
    """The model in a folder or GGUF file, packed or not: a Decoder, or a Llava where the config says so.
    Layers that are stored in few bits keep their codes.
    With dtype "auto" weights are what the folder has; of float16, which the engine's invariant kernels have
    not, float32 with the same numbers.

    Raises: ValueError where a packed model is to be converted, for another dtype, and what
    `Decoder.from_pretrained` raises.
    """
    from .packed_file import is_packed, load_packed

    if is_packed(folder):
        if dtype != "auto" or quantization is not None:
            raise ValueError(f"{folder} is packed: its dtype and quantization are what they are")
        return load_packed(folder)
    if isinstance(dtype, str) and dtype not in ("auto", *DTYPES):
        raise ValueError(f"dtype must be 'auto' or one of {[*DTYPES]}, got {dtype!r:.40}")
    if isinstance(dtype, str):
        dtype = DTYPES.get(dtype)
    kind: Any = Decoder
    if os.path.isfile(config := os.path.join(os.fspath(folder), CONFIG)):
        if read_json(config).get("model_type") in VISION_LANGUAGE:
            from ..models.llava import Llava as kind
    model = kind.from_pretrained(folder, dtype=dtype, coded=QuantLinear.from_codes)
    widened = dtype is None and invariant and _language(model).embed_tokens.weight.dtype == wt.float16
    return model.float() if widened else model


def _language(model: Any) -> Decoder:
    """A model, or the language model of one that has images, too."""
    found: Decoder = getattr(model, "language_model", model)
    return found


def _encoder_of_images(model: Any, folder: Any, limits: EngineArgs) -> Any:
    """Of a model with images; None for another one. NotImplementedError for one in a pipeline."""
    if _language(model) is model:
        return None
    if limits.pipeline_parallel_size > 1:
        raise NotImplementedError("images in a model whose layers lie on several ranks")
    from ..models.images import ImageSettings
    from .images import ImageEncoder

    vision = model.config.vision
    settings = ImageSettings.of_folder(os.curdir if folder is None else folder, vision)
    return ImageEncoder(model, settings, limits.invariant)


class LLM:
    """Generates text by a decoder.

    Args:
        model: a folder or GGUF file as `Decoder.from_pretrained` or `Llava.from_pretrained` reads it, or a
            Decoder or Llava, whose linear layers are replaced by packed ones.
        tokenizer: a folder whose tokenizer is read; None: the model's.
        skip_tokenizer_init: prompts are tokens, and there is no text.
        dtype: of the weights; "auto": the folder's, float32 for float16.
        quantization: None, "int8" (per output channel), "int4" (groups of 32) or "fp8" (float8_e4m3fn, fast
            on CUDA alone).
        generation_config: where the defaults of sampling come from: "auto": the generation_config.json of the
            model's folder, where it has one; "vllm": SamplingParams' own; or a folder with such a file. The
            end-of-sequence tokens of the model's file are added to those of its config.json in any case.
        args: see EngineArgs.

    Raises: what `Decoder.from_pretrained`, Tokenizer, LLMEngine and `sampling_defaults` raise; TypeError for
    unknown arguments.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        skip_tokenizer_init: bool = False,
        dtype: Any = "auto",
        quantization: str | None = None,
        generation_config: str | os.PathLike[str] | None = "auto",
        **args: Any,
    ) -> None:
        folder, limits = None, EngineArgs(**args)
        there = isinstance(model, nn.Module)
        name = None if there or os.path.isfile(os.fspath(model)) else model
        defaults = sampling_defaults(generation_config, name)
        if not there:
            folder = model
            model = load_model(folder, dtype, quantization, limits.invariant)
        images, model = _encoder_of_images(model.eval(), folder, limits), _language(model)
        texts = None
        if not skip_tokenizer_init and (tokenizer or folder) is not None:
            source: Any = tokenizer or folder
            texts = Tokenizer(source, model.config.vocab_size)
        ranks, stages = limits.tensor_parallel_size, limits.pipeline_parallel_size
        prepare(model, quantization, limits.invariant, ranks, stages)
        ends = end_tokens(name, model.config.vocab_size)
        self.llm_engine = engine = LLMEngine(model, texts, limits, images)
        engine.sampling_defaults = defaults
        engine.eos_token_ids += [token for token in ends if token not in engine.eos_token_ids]
        self._numbers = itertools.count()

    def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that prompts of text are encoded by.

        Returns:
            None where the model was loaded without one; prompts are token ids then.
        """
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the parameters that requests get which are given none.

        They come from the model's generation_config.json, unless `generation_config` said otherwise.
        """
        return self.llm_engine.default_sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The answers to prompts, in their order.

        Args:
            prompts: texts, {"prompt": text}, {"prompt_token_ids": [...]}, or one of these; a dict has the
                images of a model that reads them in {"multi_modal_data": {"image": [...]}}.
            sampling_params: for all, or one for each prompt; None: get_default_sampling_params().
            lora_request: for all, or one (or None) for each prompt.
            priority: for each prompt; smaller ones come first.

        Raises: what LLMEngine.add_request raises, before anything is generated.
        """
        outputs: dict[str, RequestOutput] = {}
        bar = None
        total = len(self._listed(prompts))
        if use_tqdm:
            from tqdm import tqdm

            bar = tqdm(total=total, desc="Processed prompts")
        ids: list[str] = []
        params = sampling_params if sampling_params is not None else self.get_default_sampling_params()
        each = self._each(params, total, "sampling_params")
        finals = [replace(one, output_kind=RequestOutputKind.FINAL_ONLY) for one in each]
        for output in self._run(prompts, finals, lora_request, priority, ids):
            outputs[output.request_id] = output
            if bar is not None and output.finished:
                bar.update()
        if bar is not None:
            bar.close()
        return [outputs[name] for name in ids]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, lora_request: Any = None
    ) -> Iterator[RequestOutput]:
        """The answer to one prompt as it grows, after each step, as its output_kind says. Leaving the loop
        ends the request."""
        return self._run([prompt], sampling_params, lora_request, None, [])

    def chat(
        self,
        messages: list[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        lora_request: Any = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answers to a conversation, or to a list of them, by the model's chat template.

        Args:
            use_tqdm, lora_request: as of generate().
            chat_template, add_generation_prompt, continue_final_message: see Tokenizer.apply_chat_template.
            tools, template, chat_template_kwargs: handed to the template; the last replace other arguments.

        Raises: ValueError without a tokenizer or template, and for add_generation_prompt beside
        continue_final_message; TypeError for what is no flag, text or dict.
        """
        if chat_template is not None and not isinstance(chat_template, str):
            raise TypeError(f"chat_template must be text, got {chat_template!r:.100}")
        more = {} if chat_template_kwargs is None else chat_template_kwargs
        if not isinstance(more, dict):
            raise TypeError(f"chat_template_kwargs must be a dict, got {more!r:.100}")
        values = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **template,
            **more,
        }
        if tools is not None:
            values.setdefault("tools", tools)
        many = messages if messages and isinstance(messages[0], list) else [messages]
        prompts = [self.conversation(each, **values) for each in many]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def conversation(self, messages: list[Any], **template: Any) -> Prompt:
        """The prompt of a conversation, by the model's chat template; `template` is handed to it.

        Raises: ValueError without a tokenizer or template.
        """
        tokenizer = self.get_tokenizer()
        if tokenizer is None:
            raise ValueError("chat needs a tokenizer")
        text = tokenizer.apply_chat_template(messages, **template)
        # The template has written the special tokens already.
        return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}

    @staticmethod
    def _listed(prompts: Any) -> list[Prompt]:
        if isinstance(prompts, (str, dict)):
            return [prompts]
        if not isinstance(prompts, (list, tuple)):
            raise TypeError(f"expected a prompt, or a list of prompts, got {prompts!r:.100}")
        return [prompts] if prompts and isinstance(prompts[0], int) else list(prompts)

    def _run(
        self, prompts: Any, params: Any, lora: Any, priority: Sequence[int] | None, ids: list[str]
    ) -> Iterator[RequestOutput]:
        every = self._listed(prompts)
        each_params = self._each(
            params if params is not None else self.get_default_sampling_params(),
            len(every),
            "sampling_params",
        )
        each_lora = self._each(lora, len(every), "lora_request")
        priorities = self._each(list(priority) if priority is not None else 0, len(every), "priority")
        engine = self.llm_engine
        try:
            for i, prompt in enumerate(every):
                name = str(next(self._numbers))
                engine.add_request(
                    name, prompt, each_params[i], lora_request=each_lora[i], priority=priorities[i]
                )
                ids.append(name)
            own, left = set(ids), set(ids)
            while left:
                for output in engine.step():
                    if output.finished:
                        left.discard(output.request_id)
                    if output.request_id in own:
                        yield output
        finally:  # an error, Ctrl-C, or a caller that leaves the loop
            for name in ids:
                engine.abort_request(name)

    @staticmethod
    def _each(value: Any, count: int, name: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            return [value] * count
        if len(value) != count:
            raise ValueError(f"{name}: expected one for each of the {count} prompts, got {len(value)}")
        return list(value)
