"""Devices and networks: figures of data sheets, and how large a share of them programs reach.

Every figure says where it is from. A file of the user's has the same names; see `read_gpu` and
`read_network`.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

GB = 1e9

# The one constant that is fitted: the share of its peak at which a device runs a product large enough to fill
# it. It makes the first row of Megatron-LM's table (SC'21, table 1: 1.7 billion parameters, 137 TFLOP/s)
# come out as printed; tests/parallel/test_plan.py fits it again.
EFFICIENCY = 0.70


class PlanError(ValueError):
    """What was asked cannot be planned; the message names what was expected, what came and the remedy.

    Inputs are checked before anything is computed.
    """


@dataclass(frozen=True)
class Gpu:
    """A device.

    Args:
        peak: dense bf16 (and fp16) FLOP/s of the matrix units; peak_fp8, peak_fp32 likewise.
        memory: bytes; memory_bandwidth: bytes/s of its data sheet.
        cores: streaming multiprocessors, over which the tiles of a product are spread.
        link: what joins the devices of a node, "nvlink" or "pcie"; link_bandwidth: bytes/s of one device in
            one direction.
        price: of one device for an hour, in dollars; a round figure to be replaced by your own.
    """

    name: str
    peak: float
    memory: float
    memory_bandwidth: float
    cores: int
    link_bandwidth: float
    link: str = "nvlink"
    peak_fp8: float = 0.0
    peak_fp32: float = 0.0
    price: float = 2.0


@dataclass(frozen=True)
class Network:
    """What joins devices: alpha-beta, a message of n bytes takes latency + n / (share * bandwidth).

    Args:
        node: devices in a node; they are joined by the device's own link.
        bandwidth: bytes/s between nodes, of one device in one direction (an adapter of 400 Gbit/s: 50e9).
        share: of the links' bandwidth that long messages reach; NCCL's ring over NVLink reaches about 0.8.
        link_latency, latency: seconds of one message within a node and between nodes.
        algorithm: of all-reduce between nodes: "ring", "tree", or "auto" for the faster.
        pod: devices among which the bandwidth is whole; beyond it is divided by `oversubscription`.
    """

    name: str = "infiniband"
    node: int = 8
    bandwidth: float = 50 * GB
    share: float = 0.8
    link_latency: float = 3e-6
    latency: float = 10e-6
    algorithm: str = "auto"
    pod: int = 1 << 30
    oversubscription: float = 1.0


# NVIDIA's data sheets (dense figures): A100 80GB SXM, H100 SXM5, H200 SXM, B200 (HGX), and H800, an H100 with
# NVLink of 400 GB/s in both directions together. Link bandwidths are half of the sheets', which count both.
GPUS = {
    "a100": Gpu("a100", 312e12, 80 * GB, 2.039e12, 108, 300 * GB, peak_fp32=19.5e12, price=1.5),
    "h100": Gpu("h100", 989e12, 80 * GB, 3.35e12, 132, 450 * GB, "nvlink", 1979e12, 67e12, 2.5),
    "h800": Gpu("h800", 989e12, 80 * GB, 3.35e12, 132, 200 * GB, "nvlink", 1979e12, 67e12, 2.0),
    "h200": Gpu("h200", 989e12, 141 * GB, 4.8e12, 132, 450 * GB, "nvlink", 1979e12, 67e12, 3.0),
    "b200": Gpu("b200", 2250e12, 180 * GB, 7.7e12, 148, 900 * GB, "nvlink", 4500e12, 75e12, 5.0),
}
NETWORKS = {
    "ndr400": Network("ndr400", bandwidth=50 * GB),  # InfiniBand NDR, an adapter for each device
    "hdr200": Network("hdr200", bandwidth=25 * GB),  # InfiniBand HDR, as Selene's
    # 400 Gbit/s RoCE in pods of 3,072 devices, 1:7 above them ("The Llama 3 Herd of Models", section 3.3.1)
    "roce400": Network("roce400", bandwidth=50 * GB, pod=3072, oversubscription=7.0),
    "ethernet100": Network("ethernet100", bandwidth=12.5 * GB, latency=30e-6),
}


@dataclass(frozen=True)
class Cluster:
    """`gpus` devices of one kind on a network; efficiency: see EFFICIENCY.

    Args:
        gpus: how many.
        gpu: what one can do.
        network: what connects them.
        efficiency: the share of peaks that programs reach.
    """

    gpus: int
    gpu: Gpu
    network: Network
    efficiency: float = EFFICIENCY

    def __post_init__(self) -> None:
        if type(self.gpus) is not int or self.gpus < 1:
            raise PlanError(f"plan: expected gpus to be a whole number above 0, got {self.gpus!r}")
        if not 0 < self.efficiency <= 1:
            raise PlanError(f"plan: expected efficiency to be above 0 and at most 1, got {self.efficiency!r}")

    @property
    def memory(self) -> float:
        """Bytes of one device."""
        return self.gpu.memory

    def scaled(self, gpus: int) -> Cluster:
        """The same with another number of devices.

        Args:
            gpus: how many.
        """
        return replace(self, gpus=gpus)


def read_gpu(what: str | Gpu | Mapping[str, Any]) -> Gpu:
    """A device by its name, or from a .toml or .json file (or a dict) with the fields of `Gpu`.

    Raises: PlanError for an unknown name or field, a missing or malformed file, and values that are not
    numbers above 0.
    """
    return what if isinstance(what, Gpu) else _read("gpu", what, Gpu, GPUS)


def read_network(what: str | Network | Mapping[str, Any]) -> Network:
    """A network, likewise.

    Args:
        what: a name, a file, a table of fields, or a Network.

    Raises: PlanError for what is none.
    """
    if isinstance(what, Network):
        return what
    network = _read("network", what, Network, NETWORKS)
    if network.algorithm not in ("ring", "tree", "auto"):
        raise PlanError(f"network: expected algorithm to be ring, tree or auto, got {network.algorithm!r}")
    if network.share > 1:
        raise PlanError(f"network: expected share to be at most 1, got {network.share!r}")
    return network


def _read(kind: str, what: Any, cls: Any, known: Mapping[str, Any]) -> Any:
    where = kind
    if isinstance(what, str):
        if what.lower() in known:
            return known[what.lower()]
        if not what.endswith((".toml", ".json")):
            near = difflib.get_close_matches(what.lower(), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PlanError(
                f"unknown {kind} {what!r}: expected one of {', '.join(known)}, or a .toml or .json file{hint}"
            )
        where, what = what, read_file(what)
    if not isinstance(what, Mapping):
        raise PlanError(f"{where}: expected a name or a table of {kind}'s fields, got {type(what).__name__}")
    what = what.get(kind, what)
    base = {}
    if "like" in what:  # a known one, with some figures of your own
        if what["like"] not in known:
            raise PlanError(f"{where}: expected like to be one of {', '.join(known)}, got {what['like']!r}")
        base = {f.name: getattr(known[what["like"]], f.name) for f in fields(cls)}
    values = {**base, "name": Path(where).stem, **{k: v for k, v in what.items() if k != "like"}}
    names = [f.name for f in fields(cls)]
    unknown = [k for k in values if k not in names]
    if unknown:
        raise PlanError(f"{where}: unknown {', '.join(unknown)}; expected some of {', '.join(names)}")
    for f in fields(cls):
        value = values.get(f.name)
        if value is None:
            continue
        text, is_int = f.type == "str", f.type == "int"
        fits = isinstance(value, str) if text else type(value) in ((int,) if is_int else (int, float))
        may_be_zero = f.name.startswith("peak_")
        if not fits or not (text or 0 < value < math.inf or (may_be_zero and value == 0)):
            expected = "text" if text else "a whole number above 0" if is_int else "a number above 0"
            raise PlanError(f"{where}: expected {f.name} to be {expected}, got {value!r}")
    try:
        return cls(**values)
    except TypeError:
        lacking = [n for n in names if n not in values and getattr(cls, n, None) is None]
        raise PlanError(
            f"{where}: {', '.join(lacking)} missing; give them, or like = one of {', '.join(known)}"
        ) from None


def read_file(path: str) -> dict[str, Any]:
    """The table in a .json or .toml file. Raises: PlanError.

    Args:
        path: ending in .json or .toml.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {error}") from None
    if path.endswith(".json"):
        loads = json.loads
    else:
        loads = _toml(path)
    try:
        out = loads(text)
    except ValueError as error:  # both decoders' errors are ValueErrors
        raise PlanError(f"{path}: malformed: {error}") from None
    if not isinstance(out, dict):
        raise PlanError(f"{path}: expected a table of names and values, got {type(out).__name__}")
    return out


def _toml(path: str) -> Any:
    for name in ("tomllib", "tomli"):  # Python has a reader of its own from 3.11 on
        try:
            return importlib.import_module(name).loads
        except ImportError:
            continue
    raise PlanError(f"{path}: this Python reads no TOML: pip install tomli, or write the file as .json")
