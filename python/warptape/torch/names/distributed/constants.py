"""The time that a collective may take by default."""

from datetime import timedelta

from warptape.distributed.state import DEFAULT_TIMEOUT as default_pg_timeout

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]

default_pg_nccl_timeout = timedelta(minutes=10)
