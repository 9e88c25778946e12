"""Starting values: those of PyTorch 2.13 for manual_seed(0), and what each distribution promises."""

import math

import pytest
import warptape as wt
from warptape import nn
from warptape.nn import init

# The first six elements of each tensor, recorded from PyTorch 2.13 on the CPU.
LAYERS = {
    "Linear(3, 2)": [
        [
            -0.004322517663240433,
            0.3097158372402191,
            -0.4751853346824646,
            -0.4248946011066437,
            -0.2223689705133438,
        ]
        + [0.15482072532176971],
        [-0.011439144611358643, 0.45777493715286255],
    ],
    "Conv2d(2, 2, 2)": [
        [
            -0.0026469905860722065,
            0.18966144323349,
            -0.2909903824329376,
            -0.26019373536109924,
            -0.13617262244224548,
        ]
        + [0.0948079451918602],
        [0.13977210223674774, 0.21214008331298828],
    ],
    "Embedding(3, 4, padding_idx=1)": [
        [1.5409960746765137, -0.293428897857666, -2.1787893772125244, 0.5684312582015991, 0.0, 0.0]
    ],
    "Bilinear(2, 3, 1)": [
        [
            -0.005293981172144413,
            0.37932288646698,
            -0.5819807648658752,
            -0.5203874707221985,
            -0.27234524488449097,
        ]
        + [0.1896158903837204],
        [-0.014010033570230007],
    ],
}
FUNCTIONS = {
    "uniform_": (
        lambda t: init.uniform_(t, -1, 2),
        [
            0.4887697696685791,
            1.3046653270721436,
            -0.7345677018165588,
            -0.6039085388183594,
            -0.07773154973983765,
        ],
    ),
    "normal_": (
        lambda t: init.normal_(t, 1, 0.5),
        [0.4370800852775574, 0.423819899559021, 0.8747106790542603, 0.783060610294342, 1.424355149269104],
    ),
    "trunc_normal_": (
        lambda t: init.trunc_normal_(t, 0, 1, -1, 1),
        [
            -0.6135830879211426,
            0.03159274160861969,
            -0.2505785822868347,
            -0.4338788092136383,
            0.8487103581428528,
        ],
    ),
    "trunc_normal_ in the tail": (
        lambda t: init.trunc_normal_(t, 0, 1, 1, 3),
        [1.3518203496932983, 1.5396671295166016, 1.1769548654556274, 1.2640609741210938, 1.3485342264175415],
    ),
    "xavier_uniform_": (
        init.xavier_uniform_,
        [-0.006483776494860649, 0.46457377076148987, -0.7127779722213745, -0.6373418569564819],
    ),
    "xavier_normal_": (
        init.xavier_normal_,
        [
            -0.5629199147224426,
            -0.576180100440979,
            -0.12528929114341736,
            -0.21693940460681915,
            0.4243551790714264,
        ],
    ),
    "kaiming_uniform_": (
        init.kaiming_uniform_,
        [
            -0.009169445373117924,
            0.657006561756134,
            -1.0080204010009766,
            -0.9013375639915466,
            -0.4717158377170563,
        ],
    ),
    "kaiming_normal_": (
        init.kaiming_normal_,
        [
            -0.7960889935493469,
            -0.8148416876792908,
            -0.1771858185529709,
            -0.30679863691329956,
            0.6001288294792175,
        ],
    ),
    "orthogonal_": (
        init.orthogonal_,
        [
            -0.7757869958877563,
            -0.14764514565467834,
            -0.042643364518880844,
            -0.6119942665100098,
            0.5848243236541748,
        ],
    ),
    "sparse_": (
        lambda t: init.sparse_(t, 0.5),
        [0.0, -0.011523601599037647, 0.0, -0.004338787868618965, 0.0, 0.0],
    ),
}


@pytest.mark.parametrize("text", LAYERS)
def test_layers_start_as_in_pytorch(text):
    wt.manual_seed(0)
    layer = eval("nn." + text)
    for parameter, golden in zip(layer.parameters(), LAYERS[text], strict=True):
        assert parameter.detach().flatten()[:6].tolist() == pytest.approx(golden, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_draw_as_in_pytorch(name):
    wt.manual_seed(0)
    fill, golden = FUNCTIONS[name]
    tensor = wt.empty(4, 4)
    assert fill(tensor) is tensor
    assert tensor.flatten()[: len(golden)].tolist() == pytest.approx(golden, rel=2e-6, abs=1e-6)


@pytest.mark.parametrize(
    "fill, std, bound",
    [
        (lambda t: init.normal_(t, 0, 0.02), 0.02, math.inf),
        (lambda t: init.uniform_(t, -3, 3), 3 / math.sqrt(3), 3),
        (lambda t: init.trunc_normal_(t, std=2.0, a=-2, b=2), 2 * 0.5396, 2),
        (lambda t: init.trunc_normal_(t, std=10.0, a=-1, b=1), 0.5770, 1),
        (init.xavier_normal_, math.sqrt(2 / (300 + 200)), math.inf),
        (lambda t: init.xavier_uniform_(t, gain=2), 2 * math.sqrt(2 / 500), 2 * math.sqrt(6 / 500)),
        (lambda t: init.kaiming_normal_(t, nonlinearity="relu"), math.sqrt(2 / 300), math.inf),
        (lambda t: init.kaiming_uniform_(t, mode="fan_out"), math.sqrt(2 / 200), math.sqrt(6 / 200)),
    ],
)
def test_spread(fill, std, bound):
    wt.manual_seed(1)
    values = fill(wt.empty(200, 300))
    assert values.std().item() == pytest.approx(std, rel=0.02)
    assert abs(values.mean().item()) < 0.02 * std
    assert values.abs().max().item() <= bound * (1 + 1e-6)


def test_orthogonal():
    for shape in [(3, 8), (8, 3), (4, 2, 3)]:
        q = init.orthogonal_(wt.empty(shape), gain=2).reshape(shape[0], -1)
        gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
        assert (gram - 4 * wt.eye(gram.shape[0])).abs().max().item() < 1e-5


def test_constants():
    assert init.constant_(wt.empty(2), 3.5).tolist() == [3.5, 3.5]
    assert init.ones_(wt.empty(2)).tolist() == [1, 1]
    assert init.zeros_(wt.ones(2)).tolist() == [0, 0]
    assert init.eye_(wt.empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_dirac_hands_channels_through():
    for groups in (1, 2):
        conv = nn.Conv1d(4, 4, 3, padding=1, groups=groups, bias=False)
        init.dirac_(conv.weight, groups)
        x = wt.randn(2, 4, 5)
        assert (conv(x) - x).abs().max().item() == 0


def test_sparse_counts():
    columns = init.sparse_(wt.empty(10, 3), 0.25).T
    assert [int((column == 0).sum().item()) for column in columns] == [3, 3, 3]


def test_nothing_is_recorded():
    weight = nn.Parameter(wt.empty(3, 3))
    for fill in (
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.eye_,
        init.orthogonal_,
        init.kaiming_normal_,
    ):
        fill(weight)
        assert weight.is_leaf and weight.requires_grad and weight.grad_fn is None


def test_a_generator_of_ones_own():
    def draw(fill):
        return fill(wt.empty(3, 3), generator=wt.Generator().manual_seed(7)).tolist()

    for fill in (init.uniform_, init.normal_, init.xavier_normal_, init.kaiming_uniform_, init.trunc_normal_):
        wt.manual_seed(0)
        first = draw(fill)
        wt.manual_seed(1)
        assert draw(fill) == first


def test_gains():
    assert (
        init.calculate_gain("linear") == init.calculate_gain("conv2d") == init.calculate_gain("sigmoid") == 1
    )
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("selu") == 0.75
    assert init.calculate_gain("leaky_relu") == math.sqrt(2 / (1 + 0.01**2))
    assert init.calculate_gain("leaky_relu", 1) == 1
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        init.calculate_gain("none")
    with pytest.raises(ValueError, match="not a valid number"):
        init.calculate_gain("leaky_relu", True)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: init.xavier_normal_(wt.empty(3)), "fewer than 2 dimensions"),
        (lambda: init.kaiming_normal_(wt.empty(3, 3), mode="fan"), "Mode fan not supported"),
        (lambda: init.eye_(wt.empty(3)), "2 dimensions"),
        (lambda: init.dirac_(wt.empty(3, 3)), "3, 4, or 5 dimensions"),
        (lambda: init.dirac_(wt.empty(3, 3, 3), 2), "divisible by groups"),
        (lambda: init.orthogonal_(wt.empty(3)), "2 or more dimensions"),
        (lambda: init.sparse_(wt.empty(3), 0.5), "2 dimensions"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_warnings():
    with pytest.warns(FutureWarning, match="deprecated in favor of `nn.init.xavier_uniform_`"):
        init.xavier_uniform(wt.empty(2, 2))
    with pytest.warns(UserWarning, match="no-op"):
        init.kaiming_uniform_(wt.empty(0, 2))
    with pytest.warns(UserWarning, match="more than 2 std"):
        init.trunc_normal_(wt.empty(2), mean=10.0)
