# /// script
# dependencies = ["skorch==1.4.0", "scikit-learn==1.9.1", "numpy"]
# ///
"""skorch: networks as estimators of scikit-learn."""

import io
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from _cases import case, main
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor, callbacks
from skorch.helper import SliceDataset, predefined_split

warnings.filterwarnings("ignore")


class Net(torch.nn.Module):
    def __init__(self, hidden=8, out=3, softmax=True):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, out)
        )
        self.softmax = softmax

    def forward(self, X):
        out = self.layers(X)
        return out.softmax(-1) if self.softmax else out


def data(n=90):
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(n, 5)).astype("float32")
    return x, (x @ numbers.normal(size=(5, 3))).argmax(1)


def losses(net, name="train_loss"):
    return [row.get(name) for row in net.history]  # the last epoch may end before all have scored


@case
def classifier():
    x, y = data()
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        Net, max_epochs=5, lr=0.1, batch_size=16, iterator_train__shuffle=True, verbose=0
    )
    net.fit(x, y)
    net.partial_fit(x, y)
    return losses(net), losses(net, "valid_loss"), net.predict(x), net.predict_proba(x), net.score(x, y)


@case
def regressor_and_binary():
    x, y = data()
    torch.manual_seed(0)
    target = (x[:, :1] * 2).astype("float32")
    net = NeuralNetRegressor(Net, module__out=1, module__softmax=False, optimizer=torch.optim.Adam, verbose=0)
    net.fit(x, target)
    binary = NeuralNetBinaryClassifier(Net, module__out=1, module__softmax=False, max_epochs=3, verbose=0)
    binary.fit(x, (y > 0).astype("float32"))
    return losses(net), net.predict(x), losses(binary), binary.predict(x)


@case
def grid_search_and_pipeline():
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = data()
    torch.manual_seed(0)
    net = NeuralNetClassifier(Net, max_epochs=3, lr=0.1, train_split=None, verbose=0)
    search = GridSearchCV(
        net, {"lr": [0.01, 0.2], "module__hidden": [4, 8]}, cv=3, scoring="accuracy", refit=False
    )
    search.fit(x, y)
    pipeline = make_pipeline(StandardScaler(), net)
    pipeline.fit(x, y)
    return search.cv_results_["mean_test_score"], cross_val_score(net, x, y, cv=3), pipeline.predict(x)


@case
def callbacks_and_checkpoints():
    x, y = data()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = callbacks.Checkpoint(dirname=folder, monitor="valid_loss_best")
        net = NeuralNetClassifier(
            Net,
            max_epochs=8,
            lr=0.2,
            verbose=0,
            callbacks=[
                ("stop", callbacks.EarlyStopping(patience=2, threshold=0.02)),
                (
                    "rate",
                    callbacks.LRScheduler(policy=torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
                ),
                ("norm", callbacks.GradientNormClipping(0.5)),
                ("own", callbacks.EpochScoring("accuracy", name="own", lower_is_better=False)),
                checkpoint,
            ],
        )
        net.fit(x, y)
        names = sorted(path.name for path in Path(folder).iterdir())
        again = NeuralNetClassifier(Net, verbose=0).initialize()
        again.load_params(checkpoint=checkpoint)
    return losses(net), losses(net, "own"), names, again.predict_proba(x)


@case
def saved_and_pickled():
    x, y = data()
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        Net, max_epochs=2, optimizer=torch.optim.SGD, optimizer__momentum=0.9, verbose=0
    )
    net.fit(x, y)
    file = io.BytesIO()
    net.save_params(f_params=file)
    file.seek(0)
    other = NeuralNetClassifier(Net, verbose=0).initialize()
    other.load_params(f_params=file)
    whole = pickle.loads(pickle.dumps(net))
    whole.partial_fit(x, y)
    return other.predict_proba(x), losses(whole)


@case
def own_step_and_datasets():
    class Own(NeuralNet):
        def get_loss(self, y_pred, y_true, X=None, training=False):
            loss = super().get_loss(y_pred, y_true, X=X, training=training)
            return loss + 1e-3 * sum(w.abs().sum() for w in self.module_.parameters())

    x, y = data()
    torch.manual_seed(0)
    train = torch.utils.data.TensorDataset(torch.tensor(x[:60]), torch.tensor(y[:60]))
    valid = torch.utils.data.TensorDataset(torch.tensor(x[60:]), torch.tensor(y[60:]))
    net = Own(
        Net,
        criterion=torch.nn.CrossEntropyLoss,
        module__softmax=False,
        train_split=predefined_split(valid),
        max_epochs=3,
        verbose=0,
    )
    net.fit(train)
    return (
        losses(net),
        losses(net, "valid_loss"),
        net.forward(SliceDataset(train)),
        net.infer(torch.tensor(x[:2])),
    )


if __name__ == "__main__":
    main()
