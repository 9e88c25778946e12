"""torch.names.distributed.fsdp.sharded_grad_scaler, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.fsdp.sharded_grad_scaler import *
