"""Parametrizations of weights: by length and direction, by the largest singular value, as orthogonal."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor
from warptape.core.namespaces import linalg

from .. import functional as F
from ..modules.module import Module
from . import parametrize
from .spectral_norm import as_matrix, default_dim

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


def _weight_of(module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return wt._weight_norm(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return wt.norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int = 0) -> Module:
    """Makes the tensor `name` a length along `dim`, None for one in all, times a direction ("Weight
    Normalization", section 2): parametrizations.`name`.original0 and .original1.

    Files with the names that `nn.utils.weight_norm` uses, `name`_g and `name`_v, can be loaded.
    """
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for i, end in enumerate("gv"):
            value = state_dict.pop(f"{prefix}{name}_{end}", None)
            if value is not None:
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = value

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{weight.dim()}, {weight.dim() - 1}] "
                f"but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps = dim % weight.dim(), eps
        if weight.dim() > 1:
            self.n_power_iterations = n_power_iterations
            matrix = as_matrix(weight.detach(), self.dim)
            for name, length in zip(("_u", "_v"), matrix.shape, strict=True):
                start = matrix.new_empty(length).normal_(0, 1)
                self.register_buffer(name, F.normalize(start, dim=0, eps=eps))
            self._power_method(matrix, 15)

    def _power_method(self, matrix: Tensor, steps: int) -> None:
        with wt.no_grad():
            for _ in range(steps):
                self._u.copy_(F.normalize(wt.mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(F.normalize(wt.mv(matrix.t(), self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._power_method(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next forward writes to the buffers
        return weight / wt.dot(u, wt.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divides the tensor `name`, as a matrix with `dim` first, by its largest singular value ("Spectral
    Normalization for Generative Adversarial Networks", algorithm 1).

    The first singular vectors are buffers of the parametrization, estimated by 15 steps of power iteration
    and `n_power_iterations` more each time the tensor is read in training. A vector is divided by its norm.
    """
    weight = _weight_of(module, name)
    parametrization = _SpectralNorm(
        weight, n_power_iterations, default_dim(module) if dim is None else dim, eps
    )
    parametrize.register_parametrization(module, name, parametrization)
    return module


def _reflected(vectors: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of I - tau_i v_i v_i^T; v_i is column i below a diagonal of ones."""
    n, k = vectors.shape[-2:]
    unit = wt.eye(n, k, dtype=vectors.dtype, device=vectors.device)
    columns = vectors.tril(-1) + unit
    product = unit.expand(vectors.shape)
    for i in range(k - 1, -1, -1):
        v = columns[..., i : i + 1]
        product = product - tau[..., i : i + 1, None] * v @ (v.transpose(-2, -1) @ product)
    return product


def _reflectors(q: Tensor) -> Tensor:
    """The Householder vectors of q = Q R below the diagonal, and on it the signs that R's diagonal has
    ("Matrix Computations", section 5.2.2)."""
    rest = q.clone()
    for i in range(q.shape[-1]):
        head, tail = rest[..., i, i], rest[..., i + 1 :, i]
        below = (tail * tail).sum(-1)
        beta = -wt.where(head < 0, -1.0, 1.0) * (head * head + below).sqrt()
        flat = below == 0  # nothing to reflect: the vector is zero and the sign the column's own
        v = rest[..., i:, i : i + 1] / wt.where(flat, 1.0, head - beta)[..., None, None]
        v[..., 0, 0] = 1.0
        tau = wt.where(flat, 0.0, (beta - head) / wt.where(flat, 1.0, beta))[..., None, None]
        block = rest[..., i:, i:]
        rest[..., i:, i:] = block - tau * v @ (v.transpose(-2, -1) @ block)
        rest[..., i + 1 :, i] = wt.where(flat[..., None], 0.0, v[..., 1:, 0])
        rest[..., i, i] = rest[..., i, i].sign() * wt.where(flat, -1.0, 1.0)
    return rest


def _orthonormal(a: Tensor) -> Tensor:
    """The Q of a = Q R whose R has a positive diagonal."""
    q, r = linalg.qr(a)
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


class _Orthogonal(Module):
    """A matrix with orthonormal columns, or rows where it is wide, from any matrix X: exp(A) or the Cayley
    transform (I + A/2) / (I - A/2) of an antisymmetric A made of X's lower part, or a product of Householder
    reflections whose vectors lie there. With trivialisation it is a step away from the buffer `base`
    ("Trivializations for Gradient-Based Optimization on Manifolds", section 4)."""

    base: Tensor

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        self.trivialized = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.transpose(-2, -1) if wide else x
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            vectors = x.tril(-1)
            q = _reflected(vectors, 2.0 / (1.0 + (vectors * vectors).sum(-2)))
            q = q * x.diagonal(dim1=-2, dim2=-1).detach().trunc().unsqueeze(-2)
        else:
            lower = F.pad(x.tril(), (0, n - k))
            a = lower - lower.transpose(-2, -1)
            if self.orthogonal_map == "matrix_exp":
                q = wt.matrix_exp(a)
            else:
                unit = wt.eye(n, dtype=x.dtype, device=x.device)
                q = linalg.solve(unit - 0.5 * a, unit + 0.5 * a)
            q = q[..., :k]
        if self.trivialized:
            q = self.base @ q
        return q.transpose(-2, -1) if wide else q

    def right_inverse(self, q: Tensor) -> Tensor:
        if q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape "
                f"{q.shape}."
            )
        wide = q.shape[-2] < q.shape[-1]
        tall = q.transpose(-2, -1) if wide else q
        n, k = tall.shape[-2:]
        if not self.trivialized:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley parametrizations "
                    "when use_trivialization=False."
                )
            vectors = _reflectors(tall)
            return vectors.transpose(-2, -1) if wide else vectors
        if n != k:  # completed to a square
            tall = wt.cat([tall, wt.randn(*tall.shape[:-2], n, n - k, dtype=q.dtype, device=q.device)], -1)
        gram = tall.transpose(-2, -1) @ tall
        unit = wt.eye(n, dtype=q.dtype, device=q.device)
        near = n == k and bool(((gram - unit).abs() < 10 * n * wt.finfo(q.dtype).eps).all())
        self.base = tall.clone() if near else _orthonormal(tall)
        # No step from there: A is 0, and the reflections' signs undo those of the diagonal.
        return -wt.eye(*q.shape[-2:], dtype=q.dtype, device=q.device).expand(q.shape).contiguous()


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Makes the matrix `name`, or each of a batch, orthogonal: its columns, or rows where it is wide, are
    orthonormal.

    `orthogonal_map` is "matrix_exp" (default for square matrices), "cayley" or "householder" (default for
    others). With `use_trivialization` what is trained is a step away from the present value.
    """
    weight = _weight_of(module, name)
    if weight.dim() < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices. Got a tensor of {weight.dim()} dimensions."
        )
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}'
        )
    parametrization = _Orthogonal(weight, orthogonal_map, use_trivialization)
    parametrize.register_parametrization(module, name, parametrization, unsafe=True)
    return module
