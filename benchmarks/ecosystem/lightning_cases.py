# /// script
# dependencies = ["lightning==2.6.6", "numpy"]
# ///
"""Lightning: the Trainer with callbacks and checkpoints, Fabric, and ddp on two ranks."""

import os
import tempfile
import warnings

import lightning as L
import torch
from _cases import case, main
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, ModelSummary
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False}


class Net(L.LightningModule):
    # The convolution has no bias: before BatchNorm its gradient is rounding alone, which AdamW scales up.
    def __init__(self, width=8, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, width, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(width * 16, 4),
        )
        self.losses = []

    def step(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, index):
        loss = self.step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.step(batch), sync_dist=True)

    def test_step(self, batch, index):
        self.log_dict({"test_loss": self.step(batch)})

    def predict_step(self, batch, index):
        return self.net(batch[0]).softmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


def loader(count=32, shuffle=False):
    made = torch.Generator().manual_seed(1)
    data = torch.randn(count, 1, 8, 8, generator=made), torch.randint(4, (count,), generator=made)
    return DataLoader(TensorDataset(*data), 8, shuffle=shuffle)


@case
def fit_validate_test_predict():
    L.seed_everything(0)
    model = Net()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(**QUIET, max_epochs=3, default_root_dir=folder, enable_checkpointing=False)
        trainer.fit(model, loader(shuffle=True), loader())
        seen = trainer.validate(model, loader(), verbose=False), trainer.test(model, loader(), verbose=False)
        return model.losses, seen, torch.cat(trainer.predict(model, loader()))


@case
def callbacks_and_logger():
    L.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder, name="run", version="0")
        stop = EarlyStopping("val_loss", patience=1, min_delta=0.05)
        best = ModelCheckpoint(folder, "{epoch}", monitor="val_loss", save_top_k=1, save_last=True)
        more = [stop, best, LearningRateMonitor(), ModelSummary(max_depth=2)]
        trainer = L.Trainer(
            **{**QUIET, "logger": logger},
            max_epochs=6,
            log_every_n_steps=1,
            callbacks=more,
            gradient_clip_val=0.5,
            accumulate_grad_batches=2,
            default_root_dir=folder,
        )
        model = Net()
        trainer.fit(model, loader(), loader())
        with open(os.path.join(logger.log_dir, "metrics.csv")) as file:
            header = sorted(file.readline().strip().split(","))
        return (
            model.losses,
            header,
            trainer.current_epoch,
            float(best.best_model_score),
            sorted(os.listdir(folder)),
        )


@case
def checkpoint_and_resume():
    with tempfile.TemporaryDirectory() as folder:

        def trained(epochs, path=None):
            L.seed_everything(0)
            keep = ModelCheckpoint(folder, save_last=True)
            trainer = L.Trainer(**QUIET, max_epochs=epochs, callbacks=[keep], default_root_dir=folder)
            model = Net()
            trainer.fit(model, loader(), ckpt_path=path)
            return model

        whole = trained(4).losses
        trained(2)
        resumed = trained(4, os.path.join(folder, "last.ckpt"))
        again = Net.load_from_checkpoint(os.path.join(folder, "last.ckpt"))
        return whole, resumed.losses, again.hparams.width, again.net[5].weight


@case(tolerance=2e-2)
def bfloat16_precision():
    L.seed_everything(0)
    model = Net()
    L.Trainer(**QUIET, max_epochs=2, precision="bf16-mixed", enable_checkpointing=False).fit(model, loader())
    return model.losses


@case
def manual_optimization():
    class Manual(Net):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, index):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = self.step(batch)
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.1, "norm")
            optimizer.step()
            self.losses.append(loss.item())

    L.seed_everything(0)
    model = Manual()
    L.Trainer(**QUIET, max_epochs=2, enable_checkpointing=False).fit(model, loader())
    return model.losses


@case
def fabric():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(0)
    with fabric.init_module():
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    losses = []
    for x, y in fabric.setup_dataloaders(loader()):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.ckpt")
        fabric.save(path, {"model": model, "optimizer": optimizer, "step": 4})
        rest = fabric.load(path, {"model": model, "optimizer": optimizer})
    return losses, rest, model.state_dict()


class Kept(L.Callback):
    """Writes what rank 0 ended with, for the process that started the ranks."""

    def __init__(self, path):
        self.path = path

    def on_fit_end(self, trainer, module):
        if trainer.is_global_zero:
            metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
            torch.save({"weights": module.net.state_dict(), "metrics": metrics}, self.path)


@case
def two_ranks_ddp():
    L.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.pt")
        trainer = L.Trainer(
            **QUIET,
            max_epochs=2,
            devices=2,
            strategy="ddp_spawn",
            callbacks=[Kept(path)],
            enable_checkpointing=False,
            default_root_dir=folder,
        )
        trainer.fit(Net(), loader(), loader())
        return torch.load(path)


if __name__ == "__main__":
    main()
