"""`warptape diff RUN1 RUN2`: where two runs part that `trace_hashes` has written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .compare import compare
from .page import page_of, text_of
from .trace_file import TraceError, read_run


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 where the runs are equal as far as both reach, 1 where they part, 2 for no traces.

    Args:
        arguments: those of the process if None.
    """
    parser = argparse.ArgumentParser(prog="warptape diff", description=__doc__)
    parser.add_argument("run1", help="folder of traces, or one rank's file")
    parser.add_argument("run2", help="the other one")
    parser.add_argument("--html", metavar="FILE", help="write both sides as a page of one file")
    parser.add_argument("--rtol", type=float, help="compare statistics with this tolerance instead of hashes")
    parser.add_argument("--atol", type=float, default=0.0, help="is added to each bound")
    parser.add_argument("--by-name", action="store_true", help="compare only what has a name, not ops")
    options = parser.parse_args(arguments)
    try:
        out = compare(
            options.run1, options.run2, rtol=options.rtol, atol=options.atol, by_name=options.by_name
        )
        print(text_of(out, options.run1, options.run2))
        if options.html:
            sides = read_run(options.run1), read_run(options.run2)
            common = [rank for rank in sides[0] if rank in sides[1]]
            records = {rank: [side[rank].records for side in sides] for rank in common}
            Path(options.html).write_text(page_of(out, options.run1, options.run2, records))
    except (TraceError, OSError) as error:
        print(f"warptape diff: {error}", file=sys.stderr)
        return 2
    return 0 if out.equal else 1


if __name__ == "__main__":
    sys.exit(main())
