"""The relaxed categorical distribution, under the name of PyTorch's file."""

from .relaxed_bernoulli import ExpRelaxedCategorical, RelaxedOneHotCategorical

__all__ = ["ExpRelaxedCategorical", "RelaxedOneHotCategorical"]
