"""The vector of the core: an element may be added that lies in the vector itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
PROGRAM = r"""
#include <string>

#include "core/small_vector.h"

int main() {
  const std::string text(100, 'x');
  warptape::SmallVector<std::string, 2> v;
  v.emplace_back(text);
  for (int i = 0; i < 20; ++i) v.emplace_back(v[0]);  // it grows while it is read
  for (const std::string& s : v)
    if (s != text) return 1;
  return v.size() == 21 ? 0 : 2;
}
"""


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_an_element_of_itself(tmp_path: Path) -> None:
    source, program = tmp_path / "vector.cpp", tmp_path / "vector"
    source.write_text(PROGRAM)
    flags = ["-std=c++20", "-fsanitize=address", f"-I{ROOT / 'csrc'}"]
    subprocess.run([str(COMPILER), *flags, str(source), "-o", str(program)], check=True, timeout=600)
    assert subprocess.run([str(program)], timeout=60, capture_output=True).returncode == 0
