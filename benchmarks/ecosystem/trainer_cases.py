# /// script
# dependencies = ["transformers==5.23.0", "accelerate==1.15.0", "datasets==5.2.0", "numpy"]
# ///
"""transformers' Trainer and datasets: training, evaluation, checkpoints, resume."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import torch
import transformers as hf
from _cases import case, main
from _tiny import bert, llama, tokens, word_tokenizer

datasets.disable_progress_bars()


def options(folder, **more):
    given = {
        "per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_steps": 8, "logging_steps": 2,
        "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "seed": 1,
    }  # fmt: skip
    return hf.TrainingArguments(folder, **{**given, **more})


def rows(count=32):
    ids = tokens(12, count).tolist()
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})


def logged(trainer):
    """What was logged, without times."""
    return [{k: v for k, v in line.items() if k in LOGGED} for line in trainer.state.log_history]


LOGGED = ("loss", "eval_loss", "eval_accuracy", "grad_norm", "learning_rate", "epoch", "step", "train_loss")


def trained(**more):
    model, data = llama(), rows()
    with tempfile.TemporaryDirectory() as folder:
        trainer = hf.Trainer(model, options(folder, **more), train_dataset=data, eval_dataset=rows(8))
        trainer.train()
        return logged(trainer), [p.detach().double().sum() for p in model.parameters()][:3]


@case
def plain():
    return trained(weight_decay=0.01, warmup_steps=2, lr_scheduler_type="cosine")


@case
def accumulated_and_clipped():
    return trained(gradient_accumulation_steps=2, max_grad_norm=0.1, gradient_checkpointing=True)


@case(tolerance=2e-2)
def bfloat16():
    return trained(bf16=True)[0]


@case
def evaluated():
    return trained(eval_strategy="steps", eval_steps=4)


@case
def other_optimizers():
    return trained(optim="adafactor")[0], trained(optim="sgd")[0], trained(optim="adamw_torch_fused")[0]


@case
def resumed():
    """Eight steps at once, and four, a checkpoint and four more."""
    model, data, results = llama(), rows(), []
    start = {k: v.clone() for k, v in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        for folder_name in ("once", "twice"):
            model.load_state_dict(start)
            path = os.path.join(folder, folder_name)
            args = options(path, save_strategy="steps", save_steps=4, save_total_limit=2)
            trainer = hf.Trainer(model, args, train_dataset=data)
            if folder_name == "twice":
                source = os.path.join(folder, "once", "checkpoint-4")
                trainer.train(resume_from_checkpoint=source)
            else:
                trainer.train()
            results.append([logged(trainer), sorted(os.listdir(os.path.join(path, "checkpoint-8")))])
            results.append([p.detach().double().sum() for p in model.parameters()])
    assert results[1] == results[3], "the resumed run ended elsewhere"
    return results


@case
def classified_with_metrics():
    tok = word_tokenizer()
    words = ["the quick fox", "a lazy dog", "the tape records", "the dog jumps"] * 4
    data = datasets.Dataset.from_dict({"text": words, "labels": [0, 1, 0, 1] * 4})
    data = data.map(lambda row: tok(row["text"]), batched=True).remove_columns("text")
    model = hf.BertForSequenceClassification(bert())

    def accuracy(output):
        return {"accuracy": float((output.predictions.argmax(-1) == output.label_ids).mean())}

    with tempfile.TemporaryDirectory() as folder:
        trainer = hf.Trainer(
            model, options(folder), train_dataset=data, eval_dataset=data, compute_metrics=accuracy,
            data_collator=hf.DataCollatorWithPadding(tok),
        )  # fmt: skip
        trainer.train()
        return trainer.evaluate()["eval_accuracy"], trainer.predict(data).predictions, logged(trainer)


@case
def masked_language_model():
    tok = word_tokenizer()
    tok.add_special_tokens({"mask_token": "<mask>"})
    model = hf.BertForMaskedLM(bert())
    model.resize_token_embeddings(len(tok))
    texts = [{"input_ids": tok("the quick brown fox jumps")["input_ids"]} for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        collator = hf.DataCollatorForLanguageModeling(tok, mlm_probability=0.3, seed=3)
        trainer = hf.Trainer(model, options(folder), train_dataset=texts, data_collator=collator)
        trainer.train()
        return logged(trainer)


@case
def sequence_to_sequence():
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))
    args = {"per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "use_cpu": True, "seed": 1}
    with tempfile.TemporaryDirectory() as folder:
        made = hf.Seq2SeqTrainingArguments(
            folder,
            **args,
            report_to=[],
            predict_with_generate=True,
            generation_max_length=8,
            disable_tqdm=True,
        )
        trainer = hf.Seq2SeqTrainer(model, made, train_dataset=rows(16), eval_dataset=rows(4))
        trainer.train()
        return logged(trainer), trainer.predict(rows(4)).predictions


@case
def datasets_as_tensors():
    data = datasets.Dataset.from_dict(
        {"x": [[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [1, 0, 1], "name": ["a", "b", "c"]}
    ).with_format("torch", columns=["x", "y"])
    shuffled = data.shuffle(seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    squared = data.map(lambda row: {"z": row["x"] ** 2})
    split = data.train_test_split(test_size=1, seed=0)
    stream = data.with_format(None).to_iterable_dataset().with_format("torch")
    first = data[0]
    kinds = str(first["x"].dtype), str(first["y"].dtype), type(first["x"]).__name__
    with tempfile.TemporaryDirectory() as folder:
        data.save_to_disk(folder)
        again = datasets.load_from_disk(folder)[:]
    results = [shuffled["y"][:], [dict(b) for b in loader], squared[1]["z"], split["train"]["y"][:]]
    return kinds, results, [dict(row) for row in stream], again["x"]


if __name__ == "__main__":
    main()
