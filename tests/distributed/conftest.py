import pytest
from launched import Hosts


@pytest.fixture(autouse=True)
def dumps_go_with_the_test(tmp_path, monkeypatch):
    """Flight records that a test causes lie in its own folder, also those of processes it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("WARPTAPE_FLIGHT_DIR", raising=False)


@pytest.fixture
def hosts():
    """Four network namespaces, as hosts."""
    with Hosts() as result:
        yield result
