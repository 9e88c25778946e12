"""A server for all tests of this folder."""

import pytest
from serving_models import Process, write_repository
from time_limits import SANITIZED

pytest.importorskip("uvicorn")
# Servers are processes, by the dozen: instrumented ones take too long, and other tests run what is in them.
collect_ignore_glob = ["test_*.py"] if SANITIZED else []


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def server(repository):
    with Process(repository) as process:
        yield process
