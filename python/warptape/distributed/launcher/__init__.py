"""The launcher behind `python -m warptape.distributed.run`."""
