"""What to paste into a bug report: torch.utils.collect_env's names over `warptape.doctor`.

python -m warptape.utils.collect_env
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import NamedTuple

from warptape import version
from warptape.tools import doctor

__all__ = ["SystemEnv", "get_env_info", "get_pretty_env_info", "main", "pretty_str"]


class SystemEnv(NamedTuple):
    """Versions of what a program here runs on.

    Args:
        report: what `warptape.doctor` says of devices and libraries.
        packages: names and versions of installed packages that matter here.
    """

    warptape_version: str
    os: str
    libc_version: str
    python_version: str
    python_platform: str
    report: str  # of `warptape.doctor`: compiler, instruction sets, libraries, devices
    packages: list[str]  # installed by pip, name==version


def get_env_info() -> SystemEnv:
    """Asks the system.

    No program is started and nothing is sent.
    """
    installed = {(dist.metadata["Name"] or "").lower(): dist.version for dist in metadata.distributions()}
    return SystemEnv(
        version.__version__,
        platform.system() + " " + platform.release(),
        "-".join(platform.libc_ver()),
        sys.version.replace("\n", " "),
        platform.platform(),
        "\n".join(doctor.report()),
        [f"{name}=={installed[name]}" for name in sorted(installed) if name],
    )


def pretty_str(info: SystemEnv) -> str:
    """As lines of text.

    Args:
        info: what `get_env_info` returned.
    """
    head = [f"{field.replace('_', ' ')}: {getattr(info, field)}" for field in info._fields[:5]]
    return "\n".join([*head, "", info.report, "", "packages:", *(f"  {p}" for p in info.packages)])


def get_pretty_env_info() -> str:
    """`pretty_str(get_env_info())`

    Reports of errors should have it: `python -m warptape.utils.collect_env` prints it.
    """
    return pretty_str(get_env_info())


def main() -> None:
    """Prints it."""
    print(get_pretty_env_info())


if __name__ == "__main__":
    main()
