"""Rules of ops on matrices: their batch may be split, the matrices not."""

from __future__ import annotations

from collections.abc import Callable

from .ops_pointwise import aligned, broadcast
from .rules import Call, Labels, Rule, rule


def matrices(*trailing: int) -> Callable[[Call], Rule]:
    """A rule for ops on [.., m, n] whose results have so many dims behind those of the batch."""

    def made(call: Call) -> Rule:
        batch = tuple(range(len(call.shapes[0]) - 2))
        plain: list[Labels] = [(None,) * len(s) for s in call.shapes[1:]]
        return Rule([(*batch, None, None), *plain], [(*batch, *(None,) * n) for n in trailing])

    return made


rule("inv", "inverse", "pinv")(matrices(2))
rule("cholesky", "matrix_power", "matrix_exp")(matrices(2))
rule("svdvals", "eigvals", "eigvalsh")(matrices(1))
rule("det", "logdet", "matrix_rank")(matrices(0))
rule("slogdet")(matrices(0, 0))
rule("eigh")(matrices(1, 2))
rule("qr")(matrices(2, 2))
rule("svd")(matrices(2, 1, 2))


@rule("trace")
def trace(call: Call) -> Rule:
    """[m, n] to the sum of its diagonal; linear, so it may be Partial."""
    return Rule([(None, None)], [()], linear=[{0}])


@rule("cosine_similarity")
def cosine_similarity(call: Call) -> Rule:
    """Of two tensors that are broadcast, along a dim that must not be split."""
    out = broadcast(call.shapes[:2])
    dim = call.arg(2, "dim", 1) % len(out)
    inputs = [tuple(None if x == dim else x for x in aligned(s, out)) for s in call.shapes[:2]]
    return Rule(inputs, [tuple(d for d in range(len(out)) if d != dim)])
