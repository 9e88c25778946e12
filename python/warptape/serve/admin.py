"""`warptape serve rollback NAME`, and load, unload and index: orders to a server that runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

COMMANDS = ("rollback", "load", "unload", "index")
SECONDS = 600.0  # loading a large model takes its time


class OrderError(RuntimeError):
    """What the server says against an order."""


def send(url: str, path: str, body: dict[str, Any], token: str | None) -> Any:
    """The answer to a POST. Raises: OrderError.

    Args:
        url: of the server.
        path: of the order.
        body: becomes JSON.
        token: of an admin, or None.
    """
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url.rstrip("/") + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = json.loads(text)["error"]
        raise OrderError(f"{error.code}: {text}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise OrderError(f"{url}: {getattr(error, 'reason', error)}") from None


def main(arguments: list[str]) -> int:
    """Runs one order and prints what came of it; the exit status. Raises: OrderError.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog="warptape serve", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("model", nargs="?", help="its name; not of index")
    parser.add_argument("--version", type=int, help="of load; default: the newest")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--token", default=os.environ.get("WARPTAPE_TOKEN"), help="default: WARPTAPE_TOKEN")
    options = parser.parse_args(arguments)
    if options.command == "index":
        for row in send(options.url, "/v2/repository/index", {}, options.token):
            print(row["name"], row.get("version", "-"), row["state"], row["reason"])
        return 0
    if options.model is None:
        parser.error(f"{options.command} needs the name of a model")
    body = {"parameters": {"version": options.version}} if options.version is not None else {}
    path = f"/v2/repository/models/{quote(options.model, safe='')}/{options.command}"
    answer = send(options.url, path, body, options.token)
    done = {"rollback": "serves", "load": "is loaded"}.get(options.command)
    print(f"{options.model}: version {answer['version']} {done}" if done else f"{options.model} is unloaded")
    return 0
