"""A server for all tests of this folder."""

import pytest
from serving_models import Process, write_repository

pytest.importorskip("uvicorn")


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def server(repository):
    with Process(repository) as process:
        yield process
