"""torch.distributed's names: ranks, process groups, collectives."""
