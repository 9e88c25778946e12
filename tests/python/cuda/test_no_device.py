"""What torch.cuda's names answer where no device can be used. Each case runs in one child process whose
devices are hidden, so that it is checked on every machine and in every build."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import warptape as torch

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "WARPTAPE_EMULATED_DEVICES": "0"}

ANSWERS = {
    "torch.cuda.is_available()": False,
    "torch.cuda.device_count()": 0,
    "torch.cuda.is_initialized()": False,
    "torch.cuda.get_arch_list()": [],
    "torch.cuda.is_bf16_supported()": False,
    "torch.cuda.memory_allocated()": 0,
    "torch.cuda.max_memory_allocated()": 0,
    "torch.cuda.memory_reserved()": 0,
    "len(torch.cuda.memory_stats())": 0,
    "torch.cuda.empty_cache()": None,
    "torch.cuda.manual_seed(1)": None,
    "torch.cuda.manual_seed_all(1)": None,
    "torch.cuda.seed()": None,
    "torch.cuda.get_rng_state_all()": [],
    "torch.cuda.set_rng_state_all([])": None,
    "len(torch.cuda.default_generators)": 0,
    "torch.cuda.is_current_stream_capturing()": False,
    "torch.cuda.device(-1).__enter__()": None,
    "torch.cuda.device_of(torch.ones(1)).__enter__()": None,
    "torch.cuda.stream(None).__enter__()": None,
    "torch.cuda.set_device(-1)": None,
    "torch.cuda.OutOfMemoryError is torch.OutOfMemoryError": True,
    "torch.backends.cuda.matmul.allow_tf32": False,
    "torch.backends.cudnn.enabled": True,
    "torch.backends.cudnn.benchmark": False,
    "torch.backends.cudnn.deterministic": False,
    "torch.backends.cudnn.allow_tf32": True,
    "torch.backends.cudnn.version()": None,
    "torch.backends.cudnn.is_available()": False,
    "torch.backends.mps.is_available()": False,
    "torch.get_float32_matmul_precision()": "highest",
    "torch.ones(2).is_pinned()": False,
    "torch.ones(2).get_device()": -1,
    "torch.amp.is_autocast_available('cuda')": False,
    "torch.set_default_device('cuda')": None,
    "torch.set_default_device(None)": None,
    "hasattr(torch.ones(1), '__cuda_array_interface__')": False,
    "repr(torch.get_default_device())": "device(type='cpu')",
}
REFUSED = [
    "torch.cuda.init()",
    "torch.cuda.current_device()",
    "torch.cuda.set_device(0)",
    "torch.cuda.get_device_name()",
    "torch.cuda.get_device_properties(0)",
    "torch.cuda.get_device_capability()",
    "torch.cuda.can_device_access_peer(0, 1)",
    "torch.cuda.synchronize()",
    "torch.cuda.Stream()",
    "torch.cuda.ExternalStream(1)",
    "torch.cuda.Event()",
    "torch.cuda.current_stream()",
    "torch.cuda.default_stream()",
    "torch.cuda.device(0).__enter__()",
    "torch.cuda.reset_peak_memory_stats()",
    "torch.cuda.mem_get_info()",
    "torch.cuda.set_per_process_memory_fraction(0.5)",
    "torch.cuda.initial_seed()",
    "torch.cuda.get_rng_state()",
    "torch.cuda.CUDAGraph()",
    "torch.cuda.graph_pool_handle()",
    "torch.cuda.nvtx.range_push('a')",
    "torch.cuda.nvtx.mark('a')",
    "torch.ones(2).cuda()",
    "torch.ones(2).to('cuda')",
    "torch.ones(2).to('cuda:1')",
    "torch.ones(2, device='cuda')",
    "torch.ones(2, device=0)",
    "torch.tensor([1], device='cuda')",
    "torch.ones(2).new_zeros(2, device='cuda')",
    "torch.zeros_like(torch.ones(2), device='cuda')",
    "torch.arange(3, device='cuda')",
    "torch.Generator(device='cuda')",
    "torch.nn.Linear(1, 1).cuda()",
    "torch.ones(2).pin_memory()",
    "torch.tensor([1.0], pin_memory=True)",
]

CHILD = """
import json, sys
import warptape as torch
asked = json.loads(sys.argv[1])
out = {}
for text in asked:
    try:
        out[text] = ["value", eval(text)]
    except Exception as error:
        out[text] = [type(error).__name__, str(error)]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, list]:
    result = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([*ANSWERS, *REFUSED])],
        env={**os.environ, **HIDDEN},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("text", ANSWERS)
def test_answer_without_a_device(answers: dict[str, list], text: str) -> None:
    assert answers[text] == ["value", ANSWERS[text]]


@pytest.mark.parametrize("text", REFUSED)
def test_refusal_says_what_is_missing(answers: dict[str, list], text: str) -> None:
    kind, message = answers[text]
    assert kind == "DeviceError"
    if torch.backends.cuda.is_built():
        assert "driver" in message
    else:
        assert (
            "without its CUDA plugin" in message
            and "warptape-cuda" in message
            and "WARPTAPE_CUDA=ON" in message
        )


def test_the_default_device_does_not_matter_where_one_is_named() -> None:
    text = (
        "import warptape as torch; torch.set_default_device('cuda'); "
        "print(torch.ones(2, device='cpu').sum().item()); torch.ones(2)"
    )
    result = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **HIDDEN}, capture_output=True, text=True
    )
    assert result.stdout.strip() == "2.0"
    assert "DeviceError" in result.stderr


def test_import_opens_neither_plugin_nor_submodule() -> None:
    text = (
        "import sys, warptape; print([m for m in sys.modules if m.startswith(('warptape.cuda', "
        "'warptape.backends'))], 'libwarptape_cuda' in open('/proc/self/maps').read(), "
        "hasattr(warptape._C, '_cuda'))"
    )
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[] False False"
