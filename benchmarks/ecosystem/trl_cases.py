# /// script
# dependencies = [
#   "trl==1.16.0", "peft==0.21.2", "transformers==5.23.0",
#   "accelerate==1.15.0", "datasets==5.2.0", "numpy",
# ]
# ///
"""trl: supervised fine-tuning of a tiny Llama, whole and by LoRA, packed and on completions alone; DPO."""

import copy
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import peft
import trl
from _cases import case, main
from _tiny import TEXT, llama, word_tokenizer

datasets.disable_progress_bars()
SHOWN = (
    "loss",
    "grad_norm",
    "learning_rate",
    "epoch",
    "step",
    "train_loss",
    "entropy",
    "mean_token_accuracy",
)


def run(trainer):
    trainer.train()
    return [{k: v for k, v in line.items() if k in SHOWN} for line in trainer.state.log_history]


def options(folder, kind=trl.SFTConfig, **more):
    given = {
        "per_device_train_batch_size": 2, "max_steps": 6, "logging_steps": 2, "report_to": [],
        "use_cpu": True,
        "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-3, "bf16": False, "seed": 1,
    }  # fmt: skip
    return kind(folder, **{**given, **more})


def tuned(rows, config=None, **more):
    with tempfile.TemporaryDirectory() as folder:
        made = options(folder, max_length=32, **more)
        data = datasets.Dataset.from_list(rows)
        return run(
            trl.SFTTrainer(
                llama(), made, train_dataset=data, processing_class=word_tokenizer(), peft_config=config
            )
        )


TEXTS = [{"text": text} for text in TEXT]
PAIRS = [
    {"prompt": "the quick brown", "completion": " fox jumps"},
    {"prompt": "a tape", "completion": " records"},
] * 4


@case
def supervised():
    return tuned(TEXTS)


@case
def supervised_by_lora():
    return tuned(
        TEXTS,
        peft.LoraConfig(r=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )


@case
def completions_alone():
    return tuned(PAIRS, completion_only_loss=True)


@case
def packed():
    return tuned(TEXTS, packing=True, packing_strategy="wrapped")


@case
def checkpointed():
    return tuned(TEXTS, gradient_checkpointing=True)


@case
def preferred():
    rows = [{"prompt": "the quick", "chosen": " brown fox", "rejected": " lazy dog"}] * 8
    with tempfile.TemporaryDirectory() as folder:
        made = options(folder, trl.DPOConfig, max_length=32)
        data = datasets.Dataset.from_list(rows)
        model = llama()
        reference = copy.deepcopy(model).eval()
        tok = word_tokenizer()
        return run(trl.DPOTrainer(model, reference, args=made, train_dataset=data, processing_class=tok))


if __name__ == "__main__":
    main()
