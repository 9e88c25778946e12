"""torch.names.cuda.amp.grad_scaler, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.cuda.amp.grad_scaler import *
