# /// script
# dependencies = [
#   "peft==0.21.2", "transformers==5.23.0", "accelerate==1.15.0",
#   "numpy", "safetensors", "jinja2",
# ]
# ///
"""peft: LoRA and its kin on a tiny Llama: training, merging, files, several adapters; what QLoRA needs."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import torch
from _cases import case, main
from _tiny import bert, llama, tokens

TARGETS = ["q_proj", "v_proj"]


def lora(**more):
    return peft.LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM", **more}
    )


def train(model, steps=4):
    ids, losses = tokens(), []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adapted(config):
    return peft.get_peft_model(llama(), config)


@case
def trained():
    model = adapted(lora())
    return (
        model.get_nb_trainable_parameters(),
        train(model),
        sorted(peft.get_peft_model_state_dict(model))[:4],
    )


@case
def merged():
    model, ids = adapted(lora(target_modules="all-linear")), tokens()
    losses = train(model)
    before = model(ids).logits
    whole = model.merge_and_unload()
    return losses, before, whole(ids).logits, type(whole).__name__


@case
def merged_and_unmerged():
    model, ids = adapted(lora()), tokens()
    train(model)
    with model.disable_adapter():
        base = model(ids).logits
    model.merge_adapter()
    inside = model(ids).logits
    model.unmerge_adapter()
    return base, inside, model(ids).logits


@case
def files():
    base = llama()
    start = {k: v.clone() for k, v in base.state_dict().items()}
    model, ids = peft.get_peft_model(base, lora(modules_to_save=["lm_head"])), tokens()
    train(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        names = sorted(os.listdir(folder))
        fresh = llama()
        fresh.load_state_dict(start)
        again = peft.PeftModel.from_pretrained(fresh, folder)
        return names, model(ids).logits, again(ids).logits


@case
def several_adapters():
    model, ids = adapted(lora()), tokens()
    train(model)
    model.add_adapter("second", lora(r=2))
    model.set_adapter("second")
    losses = train(model)
    model.add_weighted_adapter(["default", "second"], [0.5, 0.5], "both", combination_type="cat")
    model.set_adapter("both")
    both = model(ids).logits
    model.delete_adapter("second")
    return losses, both, sorted(model.peft_config)


@case
def variants():
    kinds = {
        "dora": lora(use_dora=True), "rslora": lora(use_rslora=True),
        "orthogonal": lora(init_lora_weights="orthogonal"),
        "pattern": lora(rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 16}),
        "bias": lora(bias="lora_only"),
    }  # fmt: skip
    return {name: train(adapted(config), 3) for name, config in kinds.items()}


@case
def decomposed_starts():
    """Starting values from the weight's singular vectors: signs are free, what is computed is not."""
    model = adapted(lora(init_lora_weights="pissa"))
    return train(model, 2)


@case
def others():
    task = {"task_type": "CAUSAL_LM"}
    kinds = {
        "ia3": peft.IA3Config(target_modules=TARGETS, feedforward_modules=[], **task),
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=3, **task),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3, **task),
        "p": peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **task),
        "loha": peft.LoHaConfig(r=2, target_modules=TARGETS, **task),
        "lokr": peft.LoKrConfig(r=2, target_modules=TARGETS, **task),
        "vera": peft.VeraConfig(r=4, target_modules=["q_proj"], **task),
        "oft": peft.OFTConfig(oft_block_size=8, target_modules=TARGETS, **task),
        "layernorm": peft.LNTuningConfig(target_modules=["input_layernorm"], **task),
    }
    return {name: train(adapted(config), 2) for name, config in kinds.items()}


@case
def classifier():
    import transformers

    config = peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(transformers.BertForSequenceClassification(bert()), config)
    loss = model(input_ids=tokens(), labels=torch.tensor([0, 1])).loss
    loss.backward()
    return loss, {
        n: p.grad.norm() for n, p in model.named_parameters() if p.grad is not None and "lora_B" in n
    }


@case
def generated():
    model = adapted(lora(init_lora_weights=False)).eval()
    return model.generate(input_ids=tokens(5), max_new_tokens=8, min_new_tokens=8, do_sample=False)


@case
def prepared_for_few_bits():
    """What QLoRA does around its CUDA kernels, and how a model in 4 bits is refused without them."""
    import transformers

    model = peft.prepare_model_for_kbit_training(llama().to(torch.bfloat16))
    kinds = sorted({str(p.dtype) for p in model.parameters()})
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        try:
            transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=config)
        except (ImportError, RuntimeError, ValueError) as error:
            return (
                kinds,
                type(error).__name__,
                str(error)[:60],
                config.bnb_4bit_compute_dtype == torch.bfloat16,
            )
    raise AssertionError("a model in 4 bits was loaded without bitsandbytes")


if __name__ == "__main__":
    main()
