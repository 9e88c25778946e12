# /// script
# dependencies = ["torchaudio==2.11.0", "numpy"]
# ///
"""torchaudio: transforms, filters, models and Kaldi's features; what needs no file and no codec."""

import math

import _cuda_linked  # noqa: F401  before what loads its ops
import torch
import torchaudio
from _cases import case, main

F, T = torchaudio.functional, torchaudio.transforms


def sound(rows=2, time=4000):
    """Tones with a little noise."""
    at = torch.arange(time) / 8000
    tones = torch.stack([torch.sin(2 * math.pi * 220 * (r + 1) * at) for r in range(rows)])
    return 0.5 * tones + 0.05 * torch.randn(rows, time)


@case
def spectrograms():
    x = sound()
    power = T.Spectrogram(n_fft=256, hop_length=100)(x)
    return {
        "power": power[..., :8],
        "mel": T.MelSpectrogram(8000, n_fft=256, n_mels=20)(x)[..., :8],
        "mfcc": T.MFCC(8000, 13, melkwargs={"n_fft": 256, "n_mels": 20})(x)[..., :8],
        "lfcc": T.LFCC(8000, n_lfcc=13, speckwargs={"n_fft": 256})(x)[..., :8],
        "decibels": T.AmplitudeToDB(top_db=60)(power)[..., :8],
        "deltas": T.ComputeDeltas()(power)[..., :8],
        "centroid": T.SpectralCentroid(8000, n_fft=256)(x),
        "inverse": T.InverseSpectrogram(256)(T.Spectrogram(256, power=None)(x))[:, :500],
    }


@case(tolerance=1e-3)
def griffin_lim():
    power = T.Spectrogram(n_fft=256)(sound(1, 2000))
    return T.GriffinLim(n_fft=256, n_iter=8, rand_init=False)(power)


@case
def filters():
    x = sound()
    a, b = torch.tensor([1.0, -0.5, 0.2]), torch.tensor([0.4, 0.2, 0.1])
    return {
        "lfilter": F.lfilter(x, a, b),
        "banks": F.lfilter(x, torch.stack([a, a * 0.9]), torch.stack([b, b * 2])),
        "filtfilt": F.filtfilt(x[:, :500], a, b),
        "lowpass": F.lowpass_biquad(x, 8000, 1000.0),
        "highpass": F.highpass_biquad(x, 8000, 500.0),
        "equalizer": F.equalizer_biquad(x, 8000, 1000.0, 6.0),
        "treble": F.treble_biquad(x, 8000, 3.0),
        "overdrive": F.overdrive(x, 10.0),
        "contrast": F.contrast(x),
        "dcshift": F.dcshift(x, 0.1, 0.05),
        "gain": F.gain(x, 3.0),
        "phaser": F.phaser(x[:, :500], 8000),
        "flanger": F.flanger(x[None, :, :500], 8000),
        "preemphasis": F.preemphasis(x),
        "deemphasis": F.deemphasis(x),
    }


@case
def filter_gradients():
    x = sound(2, 300).requires_grad_()
    a = torch.tensor([[1.0, -0.5, 0.2], [1.0, 0.3, 0.1]], requires_grad=True)
    b = torch.tensor([[0.4, 0.2, 0.1], [0.2, 0.1, 0.3]], requires_grad=True)
    F.lfilter(x, a, b, clamp=False).square().sum().backward()
    return x.grad, a.grad, b.grad


@case
def resampling_and_effects():
    x = sound()
    masked = T.FrequencyMasking(10)(T.Spectrogram(n_fft=128)(x))
    return {
        "resampled": T.Resample(8000, 5000)(x),
        "kaiser": F.resample(x, 8000, 11025, resampling_method="sinc_interp_kaiser")[:, :500],
        "mu": T.MuLawDecoding(64)(T.MuLawEncoding(64)(x)),
        "fade": T.Fade(100, 200)(x),
        "vol": T.Vol(6.0, "db")(x),
        "speed": F.speed(x, 8000, 1.2)[0],
        "pitch": F.pitch_shift(x[:, :2000], 8000, 2),
        "stretch": T.TimeStretch(65, n_freq=129, fixed_rate=1.2)(T.Spectrogram(256, power=None)(x)).abs()[
            ..., :9
        ],
        "masked": masked[..., :5],
        "convolved": F.fftconvolve(x[:, :300], x[:, 300:400]),
        "noise": F.add_noise(x, x.flip(1), torch.tensor([10.0, 5.0])),
        "vad": F.vad(x, 8000).shape,
        "loudness": F.loudness(sound(2, 8000), 8000),
        "edits": F.edit_distance("kitten", "sitting"),
        "pitches": F.detect_pitch_frequency(sound(1, 4000), 8000),
    }


@case
def kaldi_features():
    from torchaudio.compliance import kaldi

    x = sound(1, 2400)
    return [
        kaldi.fbank(x, sample_frequency=8000, num_mel_bins=10, dither=0.0),
        kaldi.mfcc(x, sample_frequency=8000, num_mel_bins=14, num_ceps=8, dither=0.0),
        kaldi.spectrogram(x, sample_frequency=8000, dither=0.0)[:, :20],
    ]


def step(model, out_of, *inputs):
    """Loss and largest gradients of one step, and the loss after it."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    losses, norms = [], []
    for _ in range(2):
        loss = out_of(model(*inputs)).float().square().mean()
        loss.backward()
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


@case
def conformer():
    model = torchaudio.models.Conformer(16, 4, 32, 2, 7, dropout=0.0)
    return step(model, lambda out: out[0], torch.randn(2, 20, 16), torch.tensor([20, 14]))


@case
def emformer():
    model = torchaudio.models.Emformer(16, 4, 32, 2, segment_length=4, right_context_length=1, dropout=0.0)
    return step(model, lambda out: out[0], torch.randn(2, 21, 16), torch.tensor([20, 12]))


@case
def deep_speech():
    model = torchaudio.models.DeepSpeech(n_feature=13, n_hidden=24, n_class=8, dropout=0.0)
    return step(model, lambda out: out, torch.randn(2, 1, 15, 13))


@case
def wav2letter():
    return step(torchaudio.models.Wav2Letter(8, "mfcc", 13), lambda out: out, torch.randn(2, 13, 60))


@case
def wav2vec2():
    model = torchaudio.models.wav2vec2_model(
        extractor_mode="group_norm",
        extractor_conv_layer_config=[(16, 10, 5), (16, 3, 2), (16, 2, 2)],
        extractor_conv_bias=False,
        encoder_embed_dim=24,
        encoder_projection_dropout=0.0,
        encoder_pos_conv_kernel=8,
        encoder_pos_conv_groups=4,
        encoder_num_layers=2,
        encoder_num_heads=4,
        encoder_attention_dropout=0.0,
        encoder_ff_interm_features=32,
        encoder_ff_interm_dropout=0.0,
        encoder_dropout=0.0,
        encoder_layer_norm_first=False,
        encoder_layer_drop=0.0,
        aux_num_out=8,
    )
    return step(model, lambda out: out[0], sound(2, 1600))


@case
def conv_tasnet():
    model = torchaudio.models.ConvTasNet(
        2, 16, 32, msk_num_feats=16, msk_num_hidden_feats=32, msk_num_layers=2, msk_num_stacks=1
    )
    return step(model, lambda out: out, sound(2, 800).unsqueeze(1))


@case
def tacotron2():
    model = torchaudio.models.Tacotron2(
        n_mels=8, n_symbol=12, symbol_embedding_dim=16, encoder_embedding_dim=16, attention_rnn_dim=16,
        attention_hidden_dim=16, attention_location_n_filter=4, decoder_rnn_dim=16, prenet_dim=8,
        postnet_embedding_dim=16, decoder_max_step=10,
    ).eval()  # fmt: skip
    text, mel = torch.randint(12, (2, 7)), torch.randn(2, 8, 10)
    with torch.no_grad():
        torch.manual_seed(3)
        return model.encoder(model.embedding(text).transpose(1, 2), torch.tensor([7, 5])), model.postnet(mel)


@case
def rnnt_and_wavernn():
    model = torchaudio.models.WaveRNN(
        [2, 2],
        n_classes=16,
        hop_length=4,
        n_res_block=1,
        n_rnn=16,
        n_fc=16,
        kernel_size=3,
        n_freq=8,
        n_hidden=8,
        n_output=8,
    )
    return step(model, lambda out: out, torch.randn(1, 1, 16), torch.randn(1, 1, 8, 6))


if __name__ == "__main__":
    main()
