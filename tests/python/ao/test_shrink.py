"""ao.shrink and ao.prune_channels: smaller models with the same outputs."""

import pytest
import warptape as torch
from shrink_models import Encoder, MobileNet, OwnAttention, ResNet, Shared, UNet, randomise
from warptape import ao, nn
from warptape.models import Decoder, DecoderConfig
from warptape.nn.utils import prune

MODELS = {
    "resnet18": (lambda: ResNet(), (2, 3, 16, 16), 0.35),
    "resnet50": (lambda: ResNet(bottleneck=True), (2, 3, 16, 16), 0.35),
    "mobilenet": (MobileNet, (2, 3, 16, 16), 0.42),
    "unet": (UNet, (2, 3, 16, 16), 0.4),
    "encoder": (Encoder, (2, 6, 32), 0.6),
    "own attention": (OwnAttention, (2, 6, 32), 0.6),
    "shared": (Shared, (5, 8), 0.4),
}


def decoder(**more):
    given = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8}
    given |= {"num_key_value_heads": 4, "max_position_embeddings": 16, "intermediate_size": 48}
    return Decoder(DecoderConfig(**given | more)).eval()


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_half_of_the_channels_go_and_the_outputs_stay(name):
    make, shape, share = MODELS[name]
    model = randomise(make())
    x = torch.randn(shape)
    original = model(x)
    report = ao.prune_channels(model, x, 0.5)
    assert report.channels and all(abs(gone - n / 2) <= 1 for n, gone in report.channels.values()), report
    expected = model(x)
    assert not torch.allclose(expected, original, atol=1e-3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    small, said = ao.shrink(model, x, return_report=True)
    torch.testing.assert_close(small(x), expected, rtol=1e-4, atol=1e-5)
    other = torch.randn(shape)
    torch.testing.assert_close(small(other), model(other), rtol=1e-4, atol=1e-5)
    assert count(small) < share * count(model) + 1 and said.parameters == (count(model), count(small))
    assert not said.kept and not said.unknown and said.shapes
    after = model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    # What is left trains, and nothing more can be taken.
    small.train()
    small(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
    assert count(ao.shrink(small.eval(), x)) == count(small)


@pytest.mark.parametrize(
    "more", [{}, {"norm": "layer_norm", "positions": "learned", "gated": False, "qkv_bias": True}]
)
def test_a_decoders_neurons_and_heads(more):
    model = decoder(**more)
    tokens = torch.randint(0, 40, (2, 9))
    ao.prune_channels(model, tokens, 0.5)
    small = ao.shrink(model, tokens)
    torch.testing.assert_close(small(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    attention, mlp = small.layers[1].self_attn, small.layers[1].mlp
    assert (attention.heads, attention.kv_heads, mlp.down_proj.in_features) == (4, 2, 24)
    assert (small.config.num_attention_heads, small.config.intermediate_size) == (4, 24)
    assert model.config.num_attention_heads == 8
    assert torch.equal(small.generate(tokens, 4), model.generate(tokens, 4))  # a cache of fewer heads


def test_masks_of_prune_are_followed_to_the_end():
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))
    prune.ln_structured(model[0], "weight", 4, n=2, dim=0)
    prune.ln_structured(model[2], "weight", 0.25, n=2, dim=0)
    model[0].bias.detach()[3:] = 0.5
    x = torch.randn(4, 6)
    model(x)
    small = ao.shrink(model, x)
    # A zero row is a neuron that is its bias, which goes into the next bias.
    assert [m.weight.shape for m in small[::2]] == [(6, 6), (6, 6), (3, 6)]
    torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-6)
    assert prune.is_pruned(model) and not prune.is_pruned(small)


def test_a_constant_behind_padding_stays():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)).eval()
    with torch.no_grad():
        model[0].weight[1:3] = 0
        model[0].bias[1], model[0].bias[2] = 0.7, -0.7
    x = torch.randn(1, 1, 8, 8)
    small = ao.shrink(model, x)
    assert small[0].out_channels == 3  # -0.7 is 0 behind ReLU; 0.7 beside padding of 0 is no constant
    torch.testing.assert_close(small(x), model(x))


def test_a_batch_norms_zero_scale_is_a_constant():
    model = randomise(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)))
    with torch.no_grad():
        model[1].weight[2:5] = 0
    x = torch.randn(2, 3, 6, 6)
    small = ao.shrink(model, x)
    assert small[1].num_features == 5 == small[0].out_channels == small[3].in_channels
    torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-6)


def test_code_with_a_fixed_width_keeps_its_heads_and_loses_its_neurons():
    model = OwnAttention(fixed=True)
    x = torch.randn(2, 5, 32)
    report = ao.prune_channels(model, x, 0.5)
    assert report.channels["qkv.weight"] == (4, 0) and report.channels["mlp.0.weight"] == (64, 32)
    with torch.no_grad():
        model.out.weight[:, 8:16] = 0  # the second head
    small, said = ao.shrink(model, x, return_report=True)
    assert said.kept == ["qkv.weight"] and small.mlp[0].out_features == 32
    torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-6)


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 2)

    def forward(self, x):
        return self.fc(self.conv(x).view(-1, 4 * 36))


def zero_rows(layer, n):
    with torch.no_grad():
        layer.weight[:n] = 0
        layer.bias[:n] = 0


@pytest.mark.parametrize(
    "make, shape, says",
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
            (1, 4),
            "0.weight .* no channel left",
        ),
        (Viewed, (1, 1, 8, 8), "flatten"),
    ],
)
def test_what_cannot_be_shrunk_is_an_error(make, shape, says):
    model = make()
    layer = next(m for m in model.modules() if hasattr(m, "weight"))
    zero_rows(layer, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ao.ShrinkError, match=says):
        ao.shrink(model, torch.randn(shape))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_bad_arguments_of_prune_channels():
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(1, 4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for more, says in [
        ({"amount": 1.0}, "below 1.0"),
        ({"amount": 0.5, "importance": "l7"}, "l7"),
        ({"amount": 0.5, "importance": "taylor"}, "backward"),
        ({"amount": 0.5, "skip": ("9",)}, "names no module"),
    ]:
        with pytest.raises(ValueError, match=says):
            ao.prune_channels(model, x, **more)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_taylor_takes_what_the_loss_does_not_need():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[0].bias.fill_(0.5)
        model[2].weight[:, :3] = 0  # three neurons that do nothing, with the same weights
    model(torch.rand(8, 4)).square().sum().backward()
    ao.prune_channels(model, torch.randn(1, 4), 0.5, importance="taylor")
    assert (model[0].weight[:3] == 0).all() and (model[0].weight[3:] == 0.5).all()


def test_the_check_finds_a_model_that_is_another():
    """A removal that changes outputs is refused, whatever the analysis thought of it."""

    class Liar(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            y = self.a(x)
            return self.b(y) * y.shape[-1]  # depends on the number of channels

    model = Liar()
    zero_rows(model.a, 2)
    with pytest.raises(ao.ShrinkError, match="differ"):
        ao.shrink(model, torch.randn(3, 4))
