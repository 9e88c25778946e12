"""The row of Lightning for speed.py: seconds of an epoch, on two threads under either runtime.

    OMP_NUM_THREADS=2 WARPTAPE_NUM_THREADS=2 python benchmarks/ecosystem/lightning_epoch.py

prints them as JSON.
"""

from __future__ import annotations

import json
import time


def lightning_epoch(epochs: int = 4) -> list[float]:
    """Seconds of each epoch but the first of `Trainer.fit`: 64 batches of 16 images, three convolutions."""
    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            conv = lambda i, o: [torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
            layers = [*conv(1, 8), *conv(8, 16), *conv(16, 16)]
            self.net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(144, 10))

        def training_step(self, batch, index):  # type: ignore[no-untyped-def]
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            return torch.optim.Adam(self.parameters(), 1e-3)

    moments: list[float] = []

    class Clock(L.Callback):
        def on_train_epoch_start(self, *_: object) -> None:
            moments.append(time.perf_counter())

        def on_train_epoch_end(self, *_: object) -> None:
            moments.append(time.perf_counter())

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 1, 28, 28), torch.randint(10, (1024,)))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, logger=False, callbacks=[Clock()], **quiet)
    trainer.fit(Net(), DataLoader(data, 16, shuffle=True))
    lengths = [end - start for start, end in zip(moments[::2], moments[1::2])]
    return lengths[1:]


if __name__ == "__main__":
    print(json.dumps(lightning_epoch()))
