"""Names as in torch.distributed.elastic."""
