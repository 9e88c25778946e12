# /// script
# dependencies = [
#   "sentence-transformers==6.2.0", "transformers==5.23.0", "accelerate==1.15.0",
#   "datasets==5.2.0", "numpy",
# ]
# ///
"""sentence-transformers: a tiny BERT from its config, encoding, similarity, losses, training, files."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import sentence_transformers as st
import torch
import transformers as hf
from _cases import case, main
from _tiny import TEXT, bert, word_tokenizer
from sentence_transformers import losses

try:
    from sentence_transformers.sentence_transformer import modules
except ImportError:
    from sentence_transformers import models as modules

datasets.disable_progress_bars()
WORDS = ["the quick fox", "a lazy dog", "the tape records", "the dog jumps over the fox"]
OTHERS = [
    "a brown fox",
    "the tensors did",
    "what a tape records",
    "the lazy dog",
]  # distinct: equal pairs have no gradient


def encoder(pooling="mean", *more):
    """A SentenceTransformer over a folder that transformers wrote."""
    with tempfile.TemporaryDirectory() as folder:
        hf.BertModel(bert()).save_pretrained(folder)
        word_tokenizer().save_pretrained(folder)
        words = modules.Transformer(folder, max_seq_length=32)
        pool = modules.Pooling(32, pooling_mode=pooling)
        return st.SentenceTransformer(modules=[words, pool, *more], device="cpu")


@case
def encoded():
    model = encoder()
    plain = model.encode(WORDS, batch_size=2, show_progress_bar=False)
    tensors = model.encode(WORDS, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False)
    return plain, tensors, model.similarity(plain, plain), str(tensors.dtype)


@case
def pooled():
    return {kind: encoder(kind).encode(WORDS, show_progress_bar=False) for kind in ("cls", "max", "mean")}


@case
def dense_and_normalised():
    model = encoder("mean", modules.Dense(32, 8), modules.Normalize())
    return model.encode(WORDS, show_progress_bar=False)


@case
def searched():
    model = encoder()
    found = st.util.semantic_search(
        model.encode(WORDS[:2], convert_to_tensor=True),
        model.encode(TEXT[:2] + WORDS, convert_to_tensor=True),
        top_k=3,
    )
    return found, st.util.paraphrase_mining(model, WORDS, show_progress_bar=False)


def trained(loss, columns):
    model = encoder()
    data = datasets.Dataset.from_dict(columns)
    with tempfile.TemporaryDirectory() as folder:
        args = st.SentenceTransformerTrainingArguments(
            folder, per_device_train_batch_size=2, max_steps=4, logging_steps=1, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, learning_rate=1e-3, seed=1,
        )  # fmt: skip
        trainer = st.SentenceTransformerTrainer(model, args, train_dataset=data, loss=loss(model))
        trainer.train()
    lines = [
        {k: v for k, v in line.items() if k in ("loss", "grad_norm")} for line in trainer.state.log_history
    ]
    return lines, model.encode(WORDS, show_progress_bar=False)


@case
def cosine_loss():
    columns = {"a": WORDS, "b": [*reversed(WORDS)], "score": [0.1, 0.9, 0.5, 0.3]}
    return trained(losses.CosineSimilarityLoss, columns)


@case
def ranking_loss():
    return trained(losses.MultipleNegativesRankingLoss, {"anchor": WORDS, "positive": OTHERS})


# What AdamW makes of gradients near zero differs by 4e-4, as between PyTorch's own one and two threads.
@case(tolerance=2e-3)
def triplet_loss():
    return trained(losses.TripletLoss, {"a": WORDS, "p": OTHERS, "n": [*reversed(WORDS)]})


@case
def files():
    model = encoder()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, create_model_card=False)
        again = st.SentenceTransformer(folder, device="cpu")
        names = sorted(os.listdir(folder))
    return names, model.encode(WORDS, show_progress_bar=False), again.encode(WORDS, show_progress_bar=False)


@case
def cross_encoder():
    with tempfile.TemporaryDirectory() as folder:
        config = bert()
        config.num_labels = 1
        hf.BertForSequenceClassification(config).save_pretrained(folder)
        word_tokenizer().save_pretrained(folder)
        model = st.CrossEncoder(folder, device="cpu", max_length=32)
        with torch.no_grad():
            return model.predict([(WORDS[0], WORDS[1]), (WORDS[2], WORDS[3])]), model.rank(
                WORDS[0], WORDS[1:]
            )


if __name__ == "__main__":
    main()
