"""Functions of functions, and calls of modules without their state."""

from .functional_call import functional_call, replace_all_batch_norm_modules_
from .transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp
from .vmap import debug_unwrap, vmap

__all__ = [
    "debug_unwrap",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "vjp",
    "vmap",
]
