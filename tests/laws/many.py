"""The laws, many more times than a test run has time for, on histories that differ each time: python tests/laws/many.py 5000."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run every law that often."""
    times = sys.argv[1] if len(sys.argv) > 1 else "5000"
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "-q", "--timeout=0", "--durations=0", *sys.argv[2:]]
    return subprocess.run(command, env={**os.environ, "ETT_LAWS": times}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
