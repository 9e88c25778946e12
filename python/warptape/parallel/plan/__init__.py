"""How to spread a model over devices before any is rented: memory, time and cost of every layout."""

from .estimates import Estimate
from .hardware import EFFICIENCY, GPUS, NETWORKS, Cluster, Gpu, Network, PlanError, read_gpu, read_network
from .layout import MEGATRON_2021, PARALLELIZE, Layout, Program
from .pictures import draw
from .planner import Plan, estimate, plan
from .search import Job, memory_of_rank
from .shape import MODELS, ModelShape, Product, gpt, llama, read_model

__all__ = [
    "EFFICIENCY",
    "GPUS",
    "MEGATRON_2021",
    "MODELS",
    "NETWORKS",
    "PARALLELIZE",
    "Cluster",
    "Estimate",
    "Gpu",
    "Job",
    "Layout",
    "ModelShape",
    "Network",
    "Plan",
    "PlanError",
    "Product",
    "Program",
    "draw",
    "estimate",
    "gpt",
    "llama",
    "memory_of_rank",
    "plan",
    "read_gpu",
    "read_model",
    "read_network",
]
