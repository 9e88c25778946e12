"""Who may ask, and for what: tokens of clients and admins, pages of other origins, turns."""

import json
import threading
import urllib.error
import urllib.request

import pytest
from serving_models import Process, write_llm
from time_limits import seconds
from warptape.serve.settings import Settings
from warptape.serve.sites import Sites
from warptape.serve.tokens import Tokens, is_order


def test_tokens_of_admins():
    tokens = Tokens(["client"], ["boss"])
    assert tokens and tokens.several
    assert tokens.key(b"Bearer client") and tokens.key(b"Bearer boss") and tokens.key(None) is None
    assert tokens.may_order(b"Bearer boss") and not tokens.may_order(b"Bearer client")
    only = Tokens([], ["boss"])  # whoever reaches the server may ask, and an admin alone may order
    assert not only and only.key(None) == "" and not only.may_order(None) and only.may_order(b"Bearer boss")
    every = Tokens(["client"])
    assert every.may_order(b"Bearer client") and not every.several
    adapter = "/v1/load_lora_adapter"  # which names any folder of the machine
    assert not every.may_order(b"Bearer client", adapter) and Tokens([]).may_order(None, adapter)
    assert tokens.may_order(b"Bearer boss", adapter)
    with pytest.raises(ValueError, match="without spaces"):
        Tokens([], ["a b"])
    orders = ("/v2/repository/models/a/load", "/v2/repository/models/me/a/rollback", "/v1/load_lora_adapter",
              "/v1/unload_lora_adapter", "/v2/repository/models/a/unload")  # fmt: skip
    assert all(map(is_order, orders)) and not is_order("/v2/repository/index")


def test_headers_for_pages_of_other_origins():
    def origin(listed, header):
        sites = Sites(Settings(allowed_origins=listed), False)
        return dict(sites.shared({b"origin": header})).get(b"access-control-allow-origin")

    page = b"https://chat.example"
    assert origin("https://chat.example, https://b.example", page) == page
    assert origin("*", page) == page
    assert origin("https://chat.example", b"https://chat.example.evil") is None and origin("", page) is None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = write_llm(tmp_path_factory.mktemp("guarded") / "llm")
    flags = ["--admin-token", "boss", "--token", "other", "--allowed-origins", "https://chat.example"]
    with Process(folder, *flags, "--max-num-seqs", 1) as process:
        yield process


def call(server, method, path, body=None, **headers):
    """Status and headers."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds(60)) as reply:
            return reply.status, reply.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_a_page_asks(guarded):
    preflight = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    status, headers = call(guarded, "OPTIONS", "/v1/completions", Origin="https://chat.example", **preflight)
    assert status == 204 and headers["access-control-allow-origin"] == "https://chat.example"
    assert "authorization" in headers["access-control-allow-headers"].lower()
    body = {"model": "llm", "prompt": "a", "max_tokens": 1}
    more = {"Authorization": "Bearer secret", "Content_Type": "application/json"}
    status, headers = call(guarded, "POST", "/v1/completions", body, Origin="https://chat.example", **more)
    assert status == 200 and headers["access-control-allow-origin"] == "https://chat.example"
    status, headers = call(guarded, "POST", "/v1/completions", body, Origin="https://evil.example", **more)
    assert status == 403 and headers["access-control-allow-origin"] is None
    status, headers = call(guarded, "OPTIONS", "/v1/completions", Origin="https://evil.example", **preflight)
    assert status != 204 and headers["access-control-allow-origin"] is None


def test_orders_need_an_admin(guarded):
    order = "/v2/repository/models/llm/rollback"
    for token, expected in (("secret", 403), ("wrong", 401), ("boss", 409)):  # there is no version before
        headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
        assert call(guarded, "POST", order, {}, **headers)[0] == expected
    assert call(guarded, "GET", "/v1/models", x_api_key="boss")[0] == 200
    assert call(guarded, "GET", "/v1/models", x_api_key="nobody")[0] == 401


def test_clients_take_turns(guarded):
    """One asks for much at once; another's only request does not wait for all of that."""
    ended = []

    def ask(token, number):
        body = {"model": "llm", "prompt": f"{number}", "max_tokens": 300, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
        assert call(guarded, "POST", "/v1/completions", body, **headers)[0] == 200
        ended.append(token)

    begun = [threading.Thread(target=ask, args=("secret", i)) for i in range(8)]
    for each in begun:
        each.start()
    while len(ended) < 1:
        pass
    late = threading.Thread(target=ask, args=("other", 9))
    late.start()
    for each in [*begun, late]:
        each.join()
    assert ended.index("other") < len(ended) - 2, ended
