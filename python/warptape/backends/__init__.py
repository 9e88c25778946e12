"""Switches of the libraries behind the ops, by the names of torch.backends."""

from . import cpu, cuda, cudnn
