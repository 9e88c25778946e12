"""CPUOffloadPolicy on devices: the same training as without, and where parts, gradients and states lie.

On the emulated device ranks are threads, and a stream runs as late as what waits for it allows: a wait that
is missing shows as wrong numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.fsdp import CPUOffloadPolicy, fully_shard
from warptape.parallel import MixedPrecisionPolicy
from warptape.parallel import tensor as tp
from warptape.parallel.shard.offload import HostShards

EMULATED = "emulated" in wt.cuda.get_device_name(0).lower() if wt.cuda.is_available() else False
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not EMULATED, reason="ranks are threads of one process")]
RANKS, STEPS = 2, 6
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
}


def net() -> Any:
    wt.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 6)) for _ in range(3)]
    return nn.Sequential(*layers, nn.LayerNorm(6), nn.Linear(6, 3)).double()


def batch() -> wt.Tensor:
    return wt.randn(STEPS, 8, 6, dtype=wt.float64, generator=wt.Generator().manual_seed(1))


@contextlib.contextmanager
def own_stream() -> Iterator[None]:
    """A rank's device, and a stream on which it waits for nobody else's work."""
    wt.cuda.set_device(dist.get_rank() % wt.cuda.device_count())
    with wt.cuda.stream(wt.cuda.Stream()):
        yield


def sharded(model: Any, **options: Any) -> Any:
    mesh = dist.init_device_mesh("cuda", (RANKS,))
    for each in [*model[:3], model]:
        fully_shard(each, mesh=mesh, **options)
    return model


def steps(model: Any, optimizer: Any, mine: slice, device: str, micro: int) -> list[wt.Tensor]:
    losses = []
    for x in batch():
        optimizer.zero_grad()
        for part in x[mine].to(device).chunk(micro):
            loss = model(part).square().mean() / micro
            loss.backward()
            losses.append(loss.detach().cpu())
        optimizer.step()
    return losses


def trained(optimizer: str, micro: int, start: str = "cuda", **options: Any) -> dict[str, wt.Tensor]:
    """The parameters after training on two ranks, as rank 0 has them."""

    def rank() -> dict[str, wt.Tensor]:
        with own_stream():
            model = sharded(net().to(start), **options)
            rows = 8 // RANKS
            at = dist.get_rank() * rows
            steps(model, OPTIMIZERS[optimizer](model.parameters()), slice(at, at + rows), "cuda", micro)
            return {name: p.full_tensor().cpu() for name, p in model.named_parameters()}

    return dist.simulate(RANKS, rank)[0]


def alone(optimizer: str) -> dict[str, wt.Tensor]:
    model = net()
    steps(model, OPTIMIZERS[optimizer](model.parameters()), slice(None), "cpu", 1)
    return {name: p.detach() for name, p in model.named_parameters()}


def differs(a: dict[str, wt.Tensor], b: dict[str, wt.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("pin", [True, False])
def test_training_is_that_of_one_process(optimizer: str, reshard: bool, pin: bool) -> None:
    got = trained(
        optimizer, 1, offload_policy=CPUOffloadPolicy(pin_memory=pin), reshard_after_forward=reshard
    )
    assert differs(got, alone(optimizer)) < 1e-10


@pytest.mark.parametrize(
    "options",
    [
        {"micro": 2},
        {"start": "cpu"},
        {"shard_placement_fn": lambda p: tp.Shard(p.ndim - 1)},
        {"mp_policy": MixedPrecisionPolicy(param_dtype=wt.float32, reduce_dtype=wt.float64)},
    ],
    ids=["accumulated", "from the CPU", "last dim", "mixed"],
)
def test_training_is_that_without(options: dict[str, Any]) -> None:
    given = {"micro": 1, **options}
    plain = trained("sgd", **{k: v for k, v in given.items() if k != "start"})
    assert differs(trained("sgd", offload_policy=CPUOffloadPolicy(), **given), plain) < 1e-12


@pytest.mark.parametrize("pin", [True, False])
def test_where_things_lie(pin: bool) -> None:
    def rank() -> None:
        with own_stream():
            model = sharded(net().cuda(), offload_policy=CPUOffloadPolicy(pin_memory=pin))
            seen = []
            model[0][0].register_forward_hook(lambda m, x, y: seen.append((m.weight.device, m.weight.shape)))
            optimizer = optim.AdamW(model.parameters())
            before = wt.cuda.memory_allocated()
            for _ in range(2):
                model(batch()[0].cuda()).sum().backward()
                for p in model.parameters():
                    assert p.device.type == p.grad.device.type == "cpu"
                    assert p.is_pinned() == p.grad.is_pinned() == pin
                optimizer.step()
                optimizer.zero_grad()
            assert [(d.type, tuple(shape)) for d, shape in seen] == [("cuda", (11, 6))] * 2
            states = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, wt.Tensor)]
            assert states and all(t.device.type == "cpu" for t in states)
            wt.cuda.synchronize()
            if dist.get_world_size() == 1:
                assert wt.cuda.memory_allocated() <= before

    dist.simulate(RANKS, rank)


def test_parts_may_be_changed_at_once() -> None:
    """The host does not wait for a forward pass, but for what it has read of the parts."""

    def rank() -> None:
        with own_stream(), wt.no_grad():
            model = sharded(net().cuda(), offload_policy=CPUOffloadPolicy())
            x = batch()[0]
            y = model(x.cuda())
            for p in model.parameters():
                p.zero_()
            wt.testing.assert_close(y.cpu(), net()(x), rtol=1e-12, atol=1e-12)

    dist.simulate(RANKS, rank)


def test_parts_travel_beside_the_computing() -> None:
    """The next module's are asked for, on another stream, before this one's output is there."""

    def rank() -> None:
        with own_stream():
            model = sharded(net().cuda(), offload_policy=CPUOffloadPolicy(), reshard_after_forward=True)
            model(batch()[0].cuda()).sum().backward()  # from the second pass on the order is known
            computing, ahead = wt.cuda.current_stream(), []

            def look(module: Any, inputs: Any, output: Any) -> None:
                group = model[1]._sharding.group
                up, down = group.host.streams()
                assert len({s.cuda_stream for s in (computing, up, down)}) == 3
                ahead.append(group.gathering is not None and not computing.query())

            model[0][0].register_forward_hook(look)
            model(batch()[0].cuda()).sum().backward()
            assert ahead[0]

    dist.simulate(RANKS, rank)


def test_the_computing_stream_waits_for_what_goes_up() -> None:
    def read(value: float, take: Any) -> bool:
        host, part = HostShards(wt.device("cuda", 0), True), wt.full((1000,), value).pin_memory()
        with wt.cuda.stream(wt.cuda.Stream()):
            with host.going_up():
                whole = part.to("cuda", non_blocking=True)
            take(host, whole)
            return bool(((whole + 1).cpu() == value + 1).all())

    assert read(1.0, HostShards.take)
    assert not read(5.0, lambda host, whole: None)


def late_gradient(self: HostShards, part: Any, gradient: wt.Tensor) -> None:
    with wt.cuda.stream(self.streams()[1]):  # does not wait for the stream that made it
        self.pending.append((part, gradient.contiguous().to("cpu", non_blocking=True)))


def unsettled(self: HostShards) -> None:
    for part, gradient in self.pending:  # perhaps still on the way
        part.grad = gradient
    self.pending.clear()


@pytest.mark.parametrize(
    "name, fault",
    [
        ("send_down", late_gradient),
        ("settle", unsettled),
        ("settle", lambda self: None),
    ],
    ids=["gradients not waited for", "used on the way", "never arrived"],
)
def test_a_planted_fault_is_found(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want = alone("sgd")
    monkeypatch.setattr(HostShards, name, fault)
    monkeypatch.setenv("WARPTAPE_EMULATOR_LIFETIMES", "0")  # which would end the process at the first
    try:
        got = trained("sgd", 1, offload_policy=CPUOffloadPolicy())
    except Exception:
        return  # as good as wrong numbers
    assert not differs(got, want) < 1e-10


def test_changing_what_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostShards, "wait_uploaded", lambda self: None)
    with pytest.raises(Exception, match="not close"):
        test_parts_may_be_changed_at_once()
    wt.cuda.synchronize()  # of the calls that were given up RankFailed has told
