"""Module: how attributes register, how the tree is walked and printed, modes, look-up by path."""

import pytest
import warptape as wt
from warptape import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.scale = nn.Parameter(wt.ones(1))
        self.register_buffer("seen", wt.zeros(1))
        self.register_buffer("scratch", wt.zeros(2), persistent=False)
        self.note = "plain"

    def forward(self, x):
        return self.fc(x) * self.scale


def test_kinds_of_attributes_go_where_they_belong():
    block = Block()
    assert list(block._parameters) == ["scale"]
    assert list(block._buffers) == ["seen", "scratch"]
    assert list(block._modules) == ["fc"]
    assert block._non_persistent_buffers_set == {"scratch"}
    assert block.__dict__["note"] == "plain"
    assert not {"scale", "seen", "fc"} & set(block.__dict__)


def test_an_attribute_is_the_object_that_was_assigned():
    block = Block()
    parameter, child = nn.Parameter(wt.ones(2)), nn.Identity()
    block.scale, block.fc = parameter, child
    assert block.scale is parameter
    assert block.fc is child


def test_names_move_between_kinds():
    block = Block()
    block.note = nn.Parameter(wt.ones(1))
    assert "note" not in block.__dict__ and "note" in block._parameters
    block.scale = nn.Identity()
    assert "scale" not in block._parameters and "scale" in block._modules
    block.scratch = nn.Parameter(wt.ones(1))
    assert "scratch" not in block._buffers and not block._non_persistent_buffers_set


def test_none_keeps_a_parameters_name():
    layer = nn.Linear(2, 2)
    layer.bias = None
    assert layer._parameters["bias"] is None
    assert list(layer.state_dict()) == ["weight"]
    assert layer(wt.ones(1, 2)).shape == (1, 2)


def test_a_tensor_replaces_a_buffer_and_is_no_buffer_otherwise():
    block = Block()
    fresh = wt.ones(1)
    block.seen = fresh
    assert block._buffers["seen"] is fresh
    block.loose = wt.ones(1)
    assert "loose" in block.__dict__
    assert "loose" not in block.state_dict()


def test_buffer_class_registers():
    module = nn.Module()
    module.kept = nn.Buffer(wt.ones(2))
    module.dropped = nn.Buffer(wt.ones(2), persistent=False)
    assert isinstance(module.kept, nn.Buffer)
    assert not isinstance(wt.ones(2), nn.Buffer)
    assert [name for name, _ in module.named_buffers()] == ["kept", "dropped"]
    assert list(module.state_dict()) == ["kept"]


def test_delete():
    block = Block()
    del block.scale, block.scratch, block.fc, block.note
    assert list(block.state_dict()) == ["seen"]
    assert not block._non_persistent_buffers_set
    with pytest.raises(AttributeError, match="'Block' object has no attribute 'scale'"):
        block.scale
    with pytest.raises(AttributeError):
        del block.scale


def test_a_weight_that_is_computed_takes_the_place_of_the_parameter():
    layer = nn.Linear(2, 2, bias=False)
    weight = layer.weight
    del layer.weight
    layer.weight = weight * 2
    x = wt.ones(1, 2)
    assert (layer(x) - x @ (weight * 2).T).abs().max().item() < 1e-6
    assert list(layer.parameters()) == []


def assign(name, value):
    def run():
        setattr(Block(), name, value)

    return run


@pytest.mark.parametrize(
    "call, error, message",
    [
        (assign("scale", 1.0), TypeError, "cannot assign 'float' as parameter 'scale'"),
        (assign("scale", wt.ones(1)), TypeError, r"as parameter 'scale' \(warptape.nn.Parameter or None"),
        (assign("fc", 3), TypeError, "cannot assign 'int' as child module 'fc'"),
        (assign("seen", 3), TypeError, "cannot assign 'int' as buffer 'seen'"),
        (lambda: nn.Module().register_parameter(3, None), TypeError, "should be a string. Got int"),
        (lambda: nn.Module().register_parameter("", None), KeyError, "parameter name .* be empty string"),
        (lambda: nn.Module().register_parameter("a.b", None), KeyError, "parameter name .* contain"),
        (lambda: Block().register_parameter("fc", None), KeyError, "attribute 'fc' already exists"),
        (lambda: Block().register_parameter("p", wt.ones(1)), TypeError, "object to parameter 'p'"),
        (lambda: Block().register_buffer("fc", None), KeyError, "attribute 'fc' already exists"),
        (lambda: Block().register_buffer("b", 3), TypeError, "cannot assign 'int' object to buffer 'b'"),
        (lambda: Block().register_buffer("a.b", None), KeyError, "buffer name .* contain"),
        (lambda: Block().add_module("m", 3), TypeError, "int is not a Module subclass"),
        (
            lambda: Block().add_module("forward", nn.Identity()),
            KeyError,
            "attribute 'forward' already exists",
        ),
        (lambda: Block().register_module("", nn.Identity()), KeyError, "module name .* be empty"),
        (lambda: nn.Linear(2, 2, wrong=1), TypeError, "unexpected keyword argument 'wrong'"),
        (lambda: nn.Sigmoid(3), TypeError, "takes 1 positional argument but 2 were given"),
        (lambda: nn.Sigmoid(wrong=3), TypeError, "got an unexpected keyword argument 'wrong'"),
        (lambda: nn.Module()(3), NotImplementedError, 'missing the required "forward" function'),
        (lambda: Block().train(1), ValueError, "training mode is expected to be boolean"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_non_leaf_parameter_is_refused():
    computed = nn.Parameter(wt.ones(1)) * 2
    with pytest.raises(TypeError, match="object to parameter"):
        Block().register_parameter("p", computed)


@pytest.mark.parametrize(
    "value, kind",
    [(nn.Parameter(wt.ones(1)), "parameter"), (nn.Identity(), "module"), (nn.Buffer(wt.ones(1)), "buffer")],
)
def test_assignment_before_init_is_refused(value, kind):
    class Early(nn.Module):
        def __init__(self):
            self.early = value
            super().__init__()

    with pytest.raises(AttributeError, match=rf"cannot assign {kind} before Module.__init__\(\) call"):
        Early()


def test_call_super_init_reaches_the_next_class():
    class Mixin:
        def __init__(self, tag):
            self.tag = tag

    class Both(nn.Module, Mixin):
        call_super_init = True

    assert Both("x").tag == "x"


def test_walks_name_every_member_once():
    shared = nn.Linear(1, 1, bias=False)
    outer = nn.Module()
    outer.block, outer.first, outer.second, outer.nothing = Block(), shared, shared, nn.Identity()
    outer._modules["gone"] = None
    outer.tied = shared.weight
    assert [name for name, _ in outer.named_modules()] == ["", "block", "block.fc", "first", "nothing"]
    assert [name for name, _ in outer.named_children()] == ["block", "first", "nothing"]
    assert [name for name, _ in outer.named_parameters()] == [
        "tied",
        "block.scale",
        "block.fc.weight",
        "block.fc.bias",
    ]
    assert [name for name, _ in outer.named_parameters(remove_duplicate=False)][-2:] == [
        "first.weight",
        "second.weight",
    ]
    assert [name for name, _ in outer.named_parameters(prefix="net", recurse=False)] == ["net.tied"]
    assert [name for name, _ in outer.named_buffers()] == ["block.seen", "block.scratch"]
    assert len(list(outer.modules())) == 5 and len(list(outer.children())) == 3
    assert len(list(outer.parameters())) == 4 and len(list(outer.buffers())) == 2
    assert "second" in dict(outer.named_modules(remove_duplicate=False))


def test_look_up_by_path():
    outer = nn.Sequential(Block())
    assert outer.get_submodule("") is outer
    assert outer.get_submodule("0.fc") is outer[0].fc
    assert outer.get_parameter("0.fc.bias") is outer[0].fc.bias
    assert outer.get_buffer("0.seen") is outer[0].seen
    outer.set_submodule("0.fc", nn.Identity())
    assert isinstance(outer[0].fc, nn.Identity)
    for call, message in [
        (lambda: outer.get_submodule("0.none"), "Block has no attribute `none`"),
        (lambda: outer.get_submodule("0.note"), "`note` is not an nn.Module"),
        (lambda: outer.get_parameter("0.seen"), "`seen` is not an nn.Parameter"),
        (lambda: outer.get_buffer("0.scale"), "`scale` is not a buffer"),
        (lambda: outer.set_submodule("0.new", nn.Identity(), strict=True), "has no attribute `new`"),
    ]:
        with pytest.raises(AttributeError, match=message):
            call()


def test_apply_runs_children_first_and_returns_self():
    seen = []
    block = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh())
    assert block.apply(lambda m: seen.append(type(m).__name__)) is block
    assert seen == ["ReLU", "Sequential", "Tanh", "Sequential"]


def test_train_and_eval_reach_all():
    block = nn.Sequential(Block(), nn.Dropout())
    assert block.eval() is block
    assert not any(m.training for m in block.modules())
    block.train()
    assert all(m.training for m in block.modules())


def test_gradients_are_switched_and_dropped():
    block = Block()
    block(wt.ones(1, 2)).sum().backward()
    block.zero_grad(set_to_none=False)
    assert all(p.grad is not None and p.grad.abs().sum().item() == 0 for p in block.parameters())
    block.zero_grad()
    assert all(p.grad is None for p in block.parameters())
    assert block.requires_grad_(False) is block
    assert not any(p.requires_grad for p in block.parameters())


def test_repr():
    class Named(nn.Module):
        def extra_repr(self):
            return "one\ntwo"

    outer = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(inplace=True)), Named())
    assert repr(outer) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): ReLU(inplace=True)\n"
        "  )\n"
        "  (2): Named(\n"
        "    one\n"
        "    two\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Module()) == "Module()"


def test_dir_lists_members():
    names = dir(Block())
    assert {"fc", "scale", "seen", "note", "forward"} <= set(names)
    assert not any(name[0].isdigit() for name in dir(nn.Sequential(nn.ReLU())))


def test_hasattr_and_getattr_default():
    block = Block()
    assert hasattr(block, "fc") and not hasattr(block, "nothing")
    assert getattr(block, "nothing", 5) == 5
    assert not hasattr(nn.Module.__new__(nn.Module), "weight")  # before __init__, too
