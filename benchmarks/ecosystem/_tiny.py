"""Models and a tokenizer small enough for cases of transformers and of what builds on it."""

import torch
import transformers as hf

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXT = ["the quick brown fox jumps over the lazy dog", "a tape records what the tensors did"] * 4
DECODER = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)).train()


def bert():
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.BertConfig(**sizes, **off, num_attention_heads=4, max_position_embeddings=64)


def tokens(length=12, batch=2):
    return torch.randint(3, 96, (batch, length))


def word_tokenizer():
    """A byte-pair tokenizer of at most 96 tokens, trained on TEXT."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=96, special_tokens=[*SPECIAL.values()])
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
