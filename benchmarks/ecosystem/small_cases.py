# /// script
# dependencies = [
#   "torchdiffeq==0.2.5", "torchsde==0.2.6", "pytorch-ignite==0.5.5", "x-transformers==2.31.10",
#   "higher==0.2.1", "optuna==5.0.0", "stable_baselines3==2.9.2", "tensorboard==2.21.0", "numpy",
# ]
# ///
"""Small libraries, a case each: differential equations, training loops, meta-learning, reinforcement."""

import tempfile
import warnings
from pathlib import Path

import torch
from _cases import case, main
from torch.nn.functional import cross_entropy, mse_loss

warnings.filterwarnings("ignore")


@case
def torchdiffeq_neural_ode():
    from torchdiffeq import odeint, odeint_adjoint

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

        def forward(self, t, y):
            return self.net(y**3)

    found = []
    for solve in (odeint, odeint_adjoint):
        for method in ("dopri5", "rk4", "implicit_adams", "euler"):
            torch.manual_seed(0)
            field, start = Field(), torch.tensor([[2.0, 0.0]])
            optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
            for _ in range(3):
                path = solve(field, start, torch.linspace(0, 1, 6), method=method)
                loss = path.abs().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
    return found


@case
def torchsde_path():
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift, self.spread = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def f(self, t, y):
            return self.drift(y)

        def g(self, t, y):
            return self.spread(y).sigmoid() * 0.1

    equation = Equation()
    motion = torchsde.BrownianInterval(t0=0.0, t1=1.0, size=(4, 3), entropy=7)
    times = torch.linspace(0, 1, 5)
    path = torchsde.sdeint(equation, torch.ones(4, 3), times, bm=motion, method="euler", dt=0.1)
    path.square().sum().backward()
    return path, equation.drift.weight.grad


@case
def ignite_trainer_and_evaluator():
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
    from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage

    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = [(torch.randn(8, 4, 4), torch.randint(3, (8,))) for _ in range(6)]
    trainer = create_supervised_trainer(model, optimizer, cross_entropy)
    metrics = {"accuracy": Accuracy(), "loss": Loss(cross_entropy), "confusion": ConfusionMatrix(3)}
    evaluator = create_supervised_evaluator(model, metrics)
    RunningAverage(output_transform=lambda x: x).attach(trainer, "mean")
    losses, seen = [], []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED, lambda engine: seen.append(dict(evaluator.run(data).metrics))
    )
    stop = EarlyStopping(2, lambda engine: -engine.state.metrics["loss"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, stop)
    with tempfile.TemporaryDirectory() as folder:
        keep = Checkpoint({"model": model, "optimizer": optimizer}, DiskSaver(folder, require_empty=False))
        trainer.add_event_handler(Events.EPOCH_COMPLETED, keep)
        trainer.run(data, max_epochs=3)
        Checkpoint.load_objects({"model": model}, torch.load(Path(folder) / keep.last_checkpoint.name))
    return losses, seen, trainer.state.metrics["mean"]


@case
def x_transformers_language_model():
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    sizes = {"dim": 32, "depth": 2, "heads": 4, "rotary_pos_emb": True, "attn_flash": False}
    more = {"ff_glu": True, "use_rmsnorm": True, "attn_dim_head": 8}
    model = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=Decoder(**sizes, **more))
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(4):
        loss = model(torch.randint(50, (4, 32)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.generate(torch.zeros(1, 1, dtype=torch.long), 8, temperature=0.0)


@case
def higher_maml():
    import higher

    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    outer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(4):
        outer.zero_grad()
        for _ in range(2):
            x, shift = torch.rand(10, 1) * 6, torch.rand(()) * 3
            inner = torch.optim.SGD(model.parameters(), 1e-2)
            with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
                for _ in range(3):
                    steps.step(mse_loss(fast(x[:5]), (x[:5] + shift).sin()))
                loss = mse_loss(fast(x[5:]), (x[5:] + shift).sin())
                loss.backward()
                losses.append(loss.item())
        outer.step()
    return losses


@case
def optuna_search():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    x, y = torch.randn(32, 4), torch.randint(2, (32,))

    def objective(trial):
        torch.manual_seed(1)
        layer = torch.nn.Linear(4, 2)
        optimizer = getattr(torch.optim, trial.suggest_categorical("kind", ["Adam", "SGD"]))(
            layer.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        )
        for step in range(4):
            loss = cross_entropy(layer(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trial.report(loss.item(), step)
        return loss.item()

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=6)
    return study.best_params, [trial.value for trial in study.trials]


@case
def stable_baselines3_ppo():
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    model.learn(128)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "ppo")
        again = PPO.load(Path(folder) / "ppo", device="cpu")
    return model.policy.state_dict(), again.predict(torch.zeros(4).numpy(), deterministic=True)[0]


@case
def stable_baselines3_dqn():
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy", "CartPole-v1", learning_starts=20, train_freq=4, batch_size=16, seed=0, device="cpu"
    )
    model.learn(100)
    return model.q_net.state_dict()


@case
def tensorboard_writer():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for step in range(3):
                writer.add_scalar("loss", 1 / (step + 1), step)
            writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 0)
            writer.add_histogram("weights", torch.arange(100.0), 0)
            writer.add_image("image", torch.rand(3, 8, 8), 0)
            writer.add_text("text", "words", 0)
            writer.add_hparams({"lr": 0.1}, {"score": 1.0})
        events = EventAccumulator(folder)
        events.Reload()
        bins = events.Histograms("weights")[0].histogram_value
        return (
            [e.value for e in events.Scalars("loss")],
            bins.sum,
            bins.bucket,
            sorted(events.Tags()["images"]),
        )


if __name__ == "__main__":
    main()
