# /// script
# dependencies = [
#   "transformers==5.23.0", "tokenizers==0.23.3", "accelerate==1.15.0",
#   "numpy", "safetensors",
# ]
# ///
"""transformers: tiny models of 13 families from their configs; training steps, generation, files.

Each case makes its model with random weights and dropout off. `*_step` is one training step: loss, logits
and the norm of each gradient, then the loss after AdamW.
"""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from _cases import case, main
from _tiny import DECODER, bert, llama, tokens, word_tokenizer

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2():
    sizes = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **off, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def t5():
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))


def whisper():
    sizes = {
        "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 16,
        "max_source_positions": 32, "max_target_positions": 32,
    }  # fmt: skip
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 3}
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes, **tokens, dropout=0.0))


def step(model, **inputs):
    """Loss, logits and gradients' norms of a step, and the loss after it."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    out = model(**inputs)
    out.loss.backward()
    # A gradient that is zero but for rounding (a key's bias) has no digits to compare.
    norms = {n: p.grad.norm() for n, p in model.named_parameters() if p.grad is not None}
    norms = {n: norm if norm > 1e-6 else 0.0 for n, norm in norms.items()}
    optimizer.step()
    return {"loss": out.loss, "norms": norms, "after": model(**inputs).loss, "out": out[1]}


def causal_step(model):
    ids = tokens()
    return step(model, input_ids=ids, labels=ids)


@case
def gpt2_step():
    return causal_step(gpt2())


@case
def llama_step():
    return causal_step(llama())


@case
def llama_eager_attention_step():
    return causal_step(hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER, attn_implementation="eager")))


@case
def llama_checkpointed_step():
    model = llama()
    model.gradient_checkpointing_enable()
    return causal_step(model)


@case(tolerance=2e-2)
def llama_padded_bfloat16():
    model = llama().to(torch.bfloat16).eval()
    ids, mask = tokens(), torch.ones(2, 12, dtype=torch.int64)
    mask[0, :5] = 0
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
    return str(logits.dtype), logits[mask.bool()]


@case
def qwen2_step():
    return causal_step(hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)))


@case
def qwen3_step():
    return causal_step(hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER, head_dim=8)))


@case
def mistral_step():
    return causal_step(hf.MistralForCausalLM(hf.MistralConfig(**DECODER, sliding_window=8)))


@case
def mixtral_step():
    config = hf.MixtralConfig(
        **DECODER, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
    )
    return causal_step(hf.MixtralForCausalLM(config))


@case
def qwen3_moe_step():
    sizes = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return causal_step(hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**DECODER, **sizes)))


@case
def bert_step():
    config = bert()
    ids, mask = tokens(), torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    masked = step(hf.BertForMaskedLM(config), input_ids=ids, attention_mask=mask, labels=ids)
    label = torch.tensor([0, 1])
    return masked, step(hf.BertForSequenceClassification(config), input_ids=ids, labels=label)


@case
def t5_step():
    return step(t5(), input_ids=tokens(), labels=tokens(7))


@case
def vit_step():
    sizes = {**SMALL, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}
    model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, **NO_DROPOUT, num_labels=5))
    return step(model, pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([1, 4]))


@case
def whisper_step():
    return step(whisper(), input_features=torch.randn(2, 16, 64), labels=tokens(6))


@case
def clip_step():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 96, "max_position_embeddings": 16, "eos_token_id": 2}
    vision = {**sizes, "image_size": 16, "patch_size": 4}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    ids = tokens()
    ids[:, -1] = 2
    return step(model, input_ids=ids, pixel_values=torch.randn(2, 3, 16, 16), return_loss=True)


def generate(model, ids=None, **options):
    ids = tokens(5) if ids is None else ids
    options = {"max_new_tokens": 12, "min_new_tokens": 12, **options}
    return model.eval().generate(ids, **options)


@case
def generate_greedy():
    models = llama(), gpt2(), hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER, head_dim=8))
    return [generate(model, do_sample=False) for model in models]


@case
def generate_sliding_window():
    config = hf.MistralConfig(**DECODER, sliding_window=6)
    return generate(hf.MistralForCausalLM(config), do_sample=False)


@case
def generate_mixture():
    config = hf.MixtralConfig(**DECODER, num_local_experts=4)
    return generate(hf.MixtralForCausalLM(config), do_sample=False)


@case
def generate_sampled():
    model = llama()
    plain = generate(model, do_sample=True, temperature=0.8)
    top = generate(model, do_sample=True, top_k=20, top_p=0.9, repetition_penalty=1.2)
    return plain, top, generate(model, do_sample=True, min_p=0.02, num_return_sequences=3)


@case
def generate_beams():
    model = llama()
    beams = generate(model, num_beams=4, num_return_sequences=2, do_sample=False, no_repeat_ngram_size=2)
    return beams, generate(model, num_beams=3, do_sample=True)


@case
def generate_scores():
    out = generate(llama(), do_sample=False, output_scores=True, return_dict_in_generate=True)
    # The end's score is -inf, relative to which every difference is nothing.
    finite = [score[:, score.isfinite().all(0)] for score in out.scores]
    return out.sequences, finite, [score.isinf().nonzero() for score in out.scores]


@case
def generate_static_cache():
    model = llama()
    ids = tokens(5)
    static = generate(model, ids, do_sample=False, cache_implementation="static", disable_compile=True)
    dynamic = generate(model, ids, do_sample=False)
    without = generate(model, ids, do_sample=False, use_cache=False)
    return static, dynamic, without, torch.equal(static, dynamic)


@case
def generate_static_cache_compiled():
    return generate(llama(), do_sample=False, cache_implementation="static")


@case
def generate_padded():
    ids, mask = tokens(6), torch.ones(2, 6, dtype=torch.int64)
    ids[0, :3], mask[0, :3] = 0, 0
    return generate(llama(), ids, do_sample=False, attention_mask=mask)


@case
def generate_encoder_decoder():
    features = torch.randn(2, 16, 64)
    heard = whisper().eval().generate(features, max_new_tokens=8, do_sample=False)
    return generate(t5(), do_sample=False), generate(t5(), num_beams=3, do_sample=False), heard


@case
def generate_assisted():
    ids = tokens(5, batch=1)
    return generate(llama(), ids, do_sample=False, assistant_model=llama().eval())


@case
def files():
    """save_pretrained and from_pretrained: sharded, tied, in another dtype."""
    ids, results = tokens(), []
    for model in (llama(), gpt2(), t5()):
        model.eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, max_shard_size="20KB")
            again = type(model).from_pretrained(folder).eval()
            half = type(model).from_pretrained(folder, dtype=torch.bfloat16)
            names = sorted(os.listdir(folder))
        both = {"input_ids": ids, "labels": ids}
        results.append([names, model(**both).loss, again(**both).loss, str(half.dtype)])
    return results


@case
def auto_classes():
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        model = hf.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
        base, info = hf.AutoModel.from_pretrained(folder, output_loading_info=True)
    ids = tokens()
    return (
        type(model).__name__,
        model(ids).logits,
        base(ids).last_hidden_state,
        {k: len(v) for k, v in info.items()},
    )


@case
def tokenizer():
    tok = word_tokenizer()
    batch = tok(["the lazy fox", "a dog records the quick tape"], return_tensors="pt", padding=True)
    with tempfile.TemporaryDirectory() as folder:
        tok.save_pretrained(folder)
        again = hf.AutoTokenizer.from_pretrained(folder)
    return dict(batch), tok.batch_decode(batch["input_ids"]), again("the fox")["input_ids"]


@case
def pipeline_and_streamer():
    tok, model = word_tokenizer(), llama().eval()
    text = hf.pipeline("text-generation", model=model, tokenizer=tok)
    options = hf.GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0)
    return text("the quick", generation_config=options), text(
        ["a dog", "fox"], batch_size=2, generation_config=options
    )


if __name__ == "__main__":
    main()
