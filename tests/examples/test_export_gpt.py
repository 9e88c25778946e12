"""examples/export_gpt.py: what train_gpt.py trained, served."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import warptape as wt
from warptape.inference import LLM, SamplingParams
from warptape.models import Decoder

pytest.importorskip("tokenizers")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = ["--layers", "2", "--heads", "2", "--width", "32", "--block", "32", "--batch", "4", "--steps", "20"]


def run(script, *arguments):
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_trained_model_is_served(tmp_path):
    text = tmp_path / "text.py"
    text.write_bytes(Path(argparse.__file__).read_bytes()[:30000])
    trained = run("train_gpt.py", *TINY, "--data", text, "--out", tmp_path)
    assert trained.returncode == 0, trained.stderr
    exported = run("export_gpt.py", tmp_path / "checkpoint.pt", tmp_path / "gpt")
    assert exported.returncode == 0, exported.stderr

    sys.path.insert(0, str(EXAMPLES))
    try:
        from train_gpt import GPT
    finally:
        sys.path.remove(str(EXAMPLES))
    model = GPT(2, 2, 32, 32)
    model.load_state_dict(wt.load(tmp_path / "checkpoint.pt")["model"])
    tokens = wt.tensor([list(b"import sys\n\xc3\xa9")])
    with wt.no_grad():
        expected = model.eval()(tokens)
        got = Decoder.from_pretrained(tmp_path / "gpt")(tokens)
    assert wt.allclose(got, expected, atol=1e-5)
    llm = LLM(tmp_path / "gpt")
    out = llm.generate("import sys\né", SamplingParams(temperature=0, max_tokens=5))[0]
    assert out.prompt_token_ids == tokens[0].tolist()
    assert out.outputs[0].token_ids[0] == int(expected[0, -1].argmax())


def test_no_checkpoint(tmp_path):
    failed = run("export_gpt.py", tmp_path / "none.pt", tmp_path / "gpt")
    assert failed.returncode == 1 and "no such file" in failed.stderr and "Traceback" not in failed.stderr
