"""Speech and series in time."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
import numpy as np
from _registry import batches, import_from, program, script, train


@program("conformer", "lucidrains/conformer with CTC")
def _(clones: Path, work: Path) -> None:
    import torch

    conformer = import_from(clones / "conformer", "conformer")
    layer = {"dim_head": 16, "heads": 4, "ff_mult": 2, "conv_kernel_size": 15}
    body = conformer.Conformer(dim=64, depth=2, **layer)
    model = torch.nn.Sequential(body, torch.nn.Linear(64, 30))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = torch.full((4,), 60), torch.full((4,), 12)

    def loss(frames: Any, text: Any) -> Any:
        found = model(frames).log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(found, text + 1, *lengths)

    train(model, optimizer, loss, batches((4, 60, 64), (29, (4, 12))))


@program("tacotron2", "NVIDIA/tacotron2 model")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.anything("librosa", "librosa.filters", "librosa.util")
    folder = clones / "tacotron2"
    sizes = {"n_mel_channels": 20, "n_symbols": 40, "symbols_embedding_dim": 32, "n_frames_per_step": 1}
    encoder = {"encoder_kernel_size": 5, "encoder_n_convolutions": 3, "encoder_embedding_dim": 32}
    decoder = {"decoder_rnn_dim": 48, "prenet_dim": 16, "max_decoder_steps": 50, "gate_threshold": 0.5}
    attention = {"attention_rnn_dim": 48, "attention_dim": 16}
    location = {"attention_location_n_filters": 8, "attention_location_kernel_size": 15}
    postnet = {"postnet_embedding_dim": 32, "postnet_kernel_size": 5, "postnet_n_convolutions": 3}
    drops = {"p_attention_dropout": 0.0, "p_decoder_dropout": 0.0}
    more = {"mask_padding": False, "fp16_run": False}
    all_of = sizes | encoder | decoder | attention | location | postnet | drops | more
    # the mask is made by torch.cuda.LongTensor, which a machine without a GPU cannot make
    torch.cuda.LongTensor = lambda n: torch.empty(n, dtype=torch.int64)
    model = import_from(folder, "model").Tacotron2(SimpleNamespace(**all_of))
    criterion = import_from(folder, "loss_function").Tacotron2Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    lengths = torch.tensor([12, 11, 9, 8]), torch.full((4,), 20)

    def loss(text: Any, mel: Any, gate: Any) -> Any:
        found = model((text, lengths[0], mel, 12, lengths[1]))
        return criterion(found, (mel, gate.float()))

    train(model, optimizer, loss, batches((40, (4, 12)), (4, 20, 20), (2, (4, 20))))


@program("hifigan", "jik876/hifi-gan generator and discriminators")
def _(clones: Path, work: Path) -> None:
    import torch

    models = import_from(clones / "hifi-gan", "models")
    sizes = {"resblock": "1", "upsample_rates": [8, 8, 4], "upsample_kernel_sizes": [16, 16, 8]}
    blocks = {"resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]]}
    generator = models.Generator(SimpleNamespace(upsample_initial_channel=32, **sizes, **blocks))
    judge = models.MultiScaleDiscriminator()
    generators = torch.optim.AdamW(generator.parameters(), 2e-4, betas=(0.8, 0.99))
    judges = torch.optim.AdamW(judge.parameters(), 2e-4, betas=(0.8, 0.99))
    for mel, sound in batches((1, 80, 8), (1, 1, 2048)):
        made = generator(mel)
        judges.zero_grad()
        real, fake, _, _ = judge(sound, made.detach())
        models.discriminator_loss(real, fake)[0].backward()
        judges.step()
        generators.zero_grad()
        _, fake, maps, made_maps = judge(sound, made)
        (models.feature_loss(maps, made_maps) + models.generator_loss(fake)[0]).backward()
        generators.step()


@program("fastspeech2", "ming024/FastSpeech2")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.module("text.symbols", symbols=list(range(40)))
    _stubs.module("text")
    (work / "stats.json").write_text('{"pitch": [-3, 3, 0, 1], "energy": [-3, 3, 0, 1]}')
    level = {"feature": "phoneme_level"}
    prepare = {"mel": {"n_mel_channels": 20}, "pitch": level, "energy": level}
    paths = {"preprocessed_path": str(work)}
    encoder = {"encoder_layer": 2, "encoder_head": 2, "encoder_hidden": 32, "encoder_dropout": 0.0}
    decoder = {"decoder_layer": 2, "decoder_head": 2, "decoder_hidden": 32, "decoder_dropout": 0.0}
    sizes = {"conv_filter_size": 64, "conv_kernel_size": [9, 1], **encoder, **decoder}
    bins = {"pitch_quantization": "linear", "energy_quantization": "linear", "n_bins": 32}
    variance = {"filter_size": 32, "kernel_size": 3, "dropout": 0.0}
    config = {"transformer": sizes, "variance_predictor": variance, "variance_embedding": bins}
    package = import_from(clones / "FastSpeech2", "model")
    # its post-net is as wide as 80 mel channels
    prepare["mel"]["n_mel_channels"] = 80
    settings = {"preprocessing": prepare, "path": paths}
    more = {"multi_speaker": False, "max_seq_len": 100}
    model = package.FastSpeech2(settings, {**config, **more})
    criterion = package.FastSpeech2Loss(settings, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9)
    lengths = torch.full((2,), 8), torch.full((2,), 24)

    def loss(text: Any, mel: Any, pitch: Any, energy: Any) -> Any:
        times = torch.full((2, 8), 3)
        inputs = (None, text + 1, lengths[0], 8, mel, lengths[1], 24, pitch, energy, times)
        return criterion((None, None, *inputs), model(*inputs))[0]

    train(model, optimizer, loss, batches((39, (2, 8)), (2, 24, 80), (2, 8), (2, 8)))


@program("vits", "jaywalnut310/vits synthesizer")
def _(clones: Path, work: Path) -> None:
    import torch

    def paths(costs: Any, mask: Any) -> Any:
        """Stands for the compiled search of an alignment: the diagonal."""
        found = np.zeros(tuple(costs.shape), np.float32)
        for y in range(found.shape[1]):
            found[:, y, y * found.shape[2] // found.shape[1]] = 1
        return torch.from_numpy(found)

    _stubs.module("monotonic_align", maximum_path=paths)
    folder = clones / "vits"
    kernels = {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]}
    rates = {"upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "upsample_initial_channel": 32}
    sizes = {"inter_channels": 32, "hidden_channels": 32, "filter_channels": 64, "n_heads": 2, "n_layers": 2}
    more = {"kernel_size": 3, "p_dropout": 0.0, "resblock": "1"}
    model = import_from(folder, "models").SynthesizerTrn(40, 65, 8, **sizes, **more, **kernels, **rates)
    losses = import_from(folder, "losses")
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4, betas=(0.8, 0.99), eps=1e-9)
    lengths = torch.full((2,), 10), torch.full((2,), 24)

    def loss(text: Any, spectrum: Any, sound: Any) -> Any:
        made, length, _, _, _, mask, (_, z_p, m_p, logs_p, _, logs_q) = model(
            text, lengths[0], spectrum, lengths[1]
        )
        distance = torch.nn.functional.l1_loss(made, sound)
        return distance + length.sum() + losses.kl_loss(z_p, logs_q, m_p, logs_p, mask)

    train(model, optimizer, loss, batches((40, (2, 10)), (2, 65, 24), (2, 1, 128)))


@program("tcn", "locuslab/TCN copy_memory")
def _(clones: Path, work: Path) -> None:
    sys.path.insert(0, str(clones / "TCN"))
    sizes = ["--batch_size=8", "--blank_len=50", "--levels=4"]
    folder = clones / "TCN/TCN/copy_memory"
    script(folder / "copymem_test.py", "--cuda", *sizes, n_train=200, n_test=8)


@program("informer", "zhouhaoyi/Informer2020 model")
def _(clones: Path, work: Path) -> None:
    import torch

    informer = import_from(clones / "Informer2020", "models.model").Informer
    sizes = {"factor": 5, "d_model": 32, "n_heads": 4, "e_layers": 2, "d_layers": 1, "d_ff": 64}
    model = informer(7, 7, 7, 48, 24, 12, **sizes, dropout=0.0, embed="timeF", device=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss(x: Any, marks: Any, y: Any, y_marks: Any) -> Any:
        begin = torch.cat([y[:, :24], torch.zeros_like(y[:, 24:])], dim=1)
        return torch.nn.functional.mse_loss(model(x, marks, begin, y_marks), y[:, -12:])

    train(model, optimizer, loss, batches((4, 48, 7), (4, 48, 4), (4, 36, 7), (4, 36, 4)))


def _forecaster(clones: Path, name: str) -> None:
    import torch

    _stubs.anything("reformer_pytorch")
    folder = clones / "Time-Series-Library"
    times = {"task_name": "long_term_forecast", "seq_len": 48, "label_len": 24, "pred_len": 12}
    sizes = {"d_model": 32, "d_ff": 64, "n_heads": 4, "e_layers": 2, "d_layers": 1, "factor": 3}
    data = {"enc_in": 7, "dec_in": 7, "c_out": 7, "embed": "timeF", "freq": "h"}
    more = {"dropout": 0.0, "activation": "gelu", "moving_avg": 25, "top_k": 3, "num_kernels": 3}
    model = import_from(folder, f"models.{name}").Model(SimpleNamespace(**times, **sizes, **data, **more))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss(x: Any, marks: Any, y: Any, y_marks: Any) -> Any:
        found = model(x, marks, torch.zeros_like(y), y_marks)
        return torch.nn.functional.mse_loss(found[:, -12:], y[:, -12:])

    train(model, optimizer, loss, batches((4, 48, 7), (4, 48, 4), (4, 36, 7), (4, 36, 4)))


@program("timesnet", "thuml/Time-Series-Library TimesNet")
def _(clones: Path, work: Path) -> None:
    _forecaster(clones, "TimesNet")


@program("autoformer", "thuml/Time-Series-Library Autoformer")
def _(clones: Path, work: Path) -> None:
    _forecaster(clones, "Autoformer")


@program("patchtst", "thuml/Time-Series-Library PatchTST")
def _(clones: Path, work: Path) -> None:
    _forecaster(clones, "PatchTST")


@program("dlinear", "thuml/Time-Series-Library DLinear")
def _(clones: Path, work: Path) -> None:
    _forecaster(clones, "DLinear")
