# /// script
# dependencies = ["ray[train]==2.60.0", "numpy"]
# ///
"""Ray: tensors as objects, actors that train, Ray Train on two workers."""

import os
import tempfile
import warnings

os.environ.update(RAY_TRAIN_V2_ENABLED="1", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

import ray
import torch
from _cases import case, main
from torch.nn.functional import mse_loss

warnings.filterwarnings("ignore")


def start():
    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)


def data(n=32):
    x = torch.linspace(-1, 1, n * 4).view(n, 4).sin()
    return x, x.sum(1, keepdim=True) * 0.5


@case
def tensors_as_objects():
    start()

    @ray.remote
    def scaled(x, by):
        return {"x": x * by, "sum": x.sum().item()}

    x = torch.randn(3, 4)
    kept = ray.put(x)
    return ray.get([scaled.remote(kept, 2), scaled.remote(torch.arange(6).view(2, 3), 3)]), ray.get(kept)


@case
def parameter_server_of_actors():
    start()

    @ray.remote
    class Worker:
        def __init__(self, rank):
            torch.manual_seed(0)
            self.model = torch.nn.Linear(4, 1)
            self.x, self.y = (part.chunk(2)[rank] for part in data())

        def gradients(self, weights):
            self.model.load_state_dict(weights)
            self.model.zero_grad()
            loss = mse_loss(self.model(self.x), self.y)
            loss.backward()
            return loss.item(), [p.grad for p in self.model.parameters()]

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = [Worker.remote(rank) for rank in range(2)]
    losses = []
    for _ in range(4):
        found = ray.get([w.gradients.remote(model.state_dict()) for w in workers])
        for p, *grads in zip(model.parameters(), *(grads for _, grads in found)):
            p.grad = torch.stack(grads).mean(0)
        optimizer.step()
        losses.append([loss for loss, _ in found])
    return losses, model.state_dict()


def train_on_a_worker(config):
    import ray.train.torch
    from ray import train

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
    dataset = torch.utils.data.TensorDataset(*data())
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(dataset, batch_size=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
            torch.distributed.all_reduce(loss.detach())
            metrics = {"loss": loss.item(), "ranks": torch.distributed.get_world_size()}
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


@case
def train_on_two_workers():
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    start()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_on_a_worker,
            train_loop_config={"lr": 0.01},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=folder, name="run"),
        )
        result = trainer.fit()
        with result.checkpoint.as_directory() as kept:
            weights = torch.load(os.path.join(kept, "model.pt"))
    return result.metrics["loss"], result.metrics["ranks"], weights


if __name__ == "__main__":
    main()
    ray.shutdown()
