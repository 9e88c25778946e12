"""Pruning by masks: named for the libraries that import it. Its use raises NotImplementedError."""

from typing import Any

from ..._missing import unusable


def _named(name: str) -> Any:
    return unusable(f"torch.nn.utils.prune.{name}", "weights are not pruned by masks here")


BasePruningMethod = _named("BasePruningMethod")
Identity = _named("Identity")
L1Unstructured = _named("L1Unstructured")
LnStructured = _named("LnStructured")
PruningContainer = _named("PruningContainer")
RandomStructured = _named("RandomStructured")
RandomUnstructured = _named("RandomUnstructured")
custom_from_mask = _named("custom_from_mask")
global_unstructured = _named("global_unstructured")
identity = _named("identity")
is_pruned = _named("is_pruned")
l1_unstructured = _named("l1_unstructured")
ln_structured = _named("ln_structured")
random_structured = _named("random_structured")
random_unstructured = _named("random_unstructured")
remove = _named("remove")
