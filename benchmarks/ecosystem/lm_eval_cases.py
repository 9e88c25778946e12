# /// script
# dependencies = [
#   "lm-eval==0.4.13", "transformers==5.23.0", "accelerate==1.15.0",
#   "datasets==5.2.0", "numpy",
# ]
# ///
"""lm-eval: a tiny Llama is scored through HFLM, on requests and on a task made here, without a network."""

import json
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

from _cases import case, main
from _tiny import TEXT, llama, word_tokenizer
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager


def judged():
    return HFLM(
        pretrained=llama().eval(), tokenizer=word_tokenizer(), batch_size=2, device="cpu", max_length=48
    )


def requests(kind, arguments):
    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


@case
def likelihoods():
    pairs = [("the quick", " brown fox"), ("a tape", " records"), ("the", " lazy dog")]
    return judged().loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)


@case
def rolling_likelihoods():
    return judged().loglikelihood_rolling(
        requests("loglikelihood_rolling", [(t,) for t in TEXT[:2]]), disable_tqdm=True
    )


@case
def generated():
    options = {"max_gen_toks": 8, "do_sample": False, "until": ["</s>"]}
    return judged().generate_until(
        requests("generate_until", [("the quick", options), ("a dog", options)]), disable_tqdm=True
    )


@case
def own_task():
    rows = [
        {"q": "the quick brown", "c": ["fox", "dog"], "y": 0},
        {"q": "over the lazy", "c": ["tape", "dog"], "y": 1},
    ] * 3
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        with open(path, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        task = {
            "task": "own", "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": path}, "cache_dir": folder},
            "test_split": "test", "output_type": "multiple_choice",
            "doc_to_text": "{{q}}", "doc_to_choice": "{{c}}",
            "doc_to_target": "{{y}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }  # fmt: skip
        out = simple_evaluate(
            judged(),
            tasks=[task],
            num_fewshot=0,
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
            verbosity="ERROR",
        )
    scores = {k: v for k, v in out["results"]["own"].items() if isinstance(v, float)}
    return scores, [sample["resps"] for sample in out["samples"]["own"]]


if __name__ == "__main__":
    main()
