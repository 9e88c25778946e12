"""Which code blocks and tables of the built site a browser cuts off.

    mkdocs build --strict -f .mkdocs.yml
    python tools/page_widths.py                           every page of build/site, at 1280 pixels
    python tools/page_widths.py --width 1024 --only guides/

Needs Chromium (`apt-get install chromium`, or any browser of its family that --browser names). Without one it
says so and ends with status 2. The status is 1 where something is wider than the box that shows it.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 120  # seconds without a word of the browser
# Opened once: it shows each page in a frame, one after the other, and sends what scrolls sideways there: its
# tag, the width that it needs, the width that it has, and how it begins.
SCRIPT = """<!doctype html><body><script>
const pages = PAGES;
function wide(doc) {
  const found = [];
  for (const e of doc.querySelectorAll("html, pre, pre > code, table, .md-typeset__scrollwrap")) {
    const shown = e.clientWidth > 0 && doc.defaultView.getComputedStyle(e).display != "inline";
    if (shown && e.scrollWidth > e.clientWidth + 1)
      found.push([e.tagName.toLowerCase(), e.scrollWidth, e.clientWidth, e.textContent.trim().slice(0, 60)]);
  }
  return found;
}
function look(i) {
  if (i == pages.length) return;
  const frame = document.createElement("iframe");
  frame.style = "border: 0; width: WIDTHpx; height: 900px";
  frame.onload = async () => {
    await fetch("/", {method: "POST", body: JSON.stringify([pages[i], wide(frame.contentDocument)])});
    frame.remove();
    look(i + 1);
  };
  frame.src = "/" + pages[i];
  document.body.append(frame);
}
look(0);
</script>"""


class Site(http.server.SimpleHTTPRequestHandler):
    """The pages' files, and at /probe the script; what is posted goes into a queue."""

    def __init__(self, probe: str, told: queue.Queue[Any], *arguments: Any, **more: Any) -> None:
        self.probe, self.told = probe.encode(), told
        super().__init__(*arguments, **more)

    def do_GET(self) -> None:
        """Answers with a file or the script."""
        if self.path != "/probe":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.probe)

    def do_POST(self) -> None:
        """Takes what was found on a page."""
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def cut_off(browser: str, folder: Path, pages: list[str], width: int) -> int:
    """Prints what is too wide, and returns on how many pages. Raises queue.Empty for a silent browser."""
    told: queue.Queue[Any] = queue.Queue()
    probe = SCRIPT.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    handler = functools.partial(Site, probe, told, directory=str(folder))
    failing = 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        command += [f"--user-data-dir={home}", f"http://127.0.0.1:{server.server_address[1]}/probe"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in pages:
                page, wide = told.get(timeout=PATIENCE)
                failing += bool(wide)
                for tag, needs, has, text in wide:
                    print(
                        f"{page}: {tag} needs {needs} of {has} pixels: {' '.join(text.split())}", flush=True
                    )
        finally:
            process.kill()
            process.wait()
            server.shutdown()
    return failing


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build/site", help="of HTML pages")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels")
    parser.add_argument("--browser", default=next(filter(shutil.which, BROWSERS), None))
    parser.add_argument("--only", default="", help="pages whose paths begin so")
    options = parser.parse_args(arguments)
    if options.browser is None:
        print(f"page_widths.py: no browser: none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return 2
    folder = options.folder.resolve()
    found = (str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    pages = sorted(page for page in found if page.startswith(options.only))
    if not pages:
        print(
            f"page_widths.py: no such pages in {folder}: mkdocs build -f .mkdocs.yml makes them",
            file=sys.stderr,
        )
        return 2
    failing = cut_off(options.browser, folder, pages, options.width)
    print(f"{len(pages)} pages at {options.width} pixels, {failing} with something cut off")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
