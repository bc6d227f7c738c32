"""Runs the tests that have just failed once more, one after the other, and says which they were.

    python tests/once_more.py [LIMIT]

Called by `make test` after a run with failures. Two tests beside each other and other programs on the
machine take a processor away at any moment; what then fails and passes alone is printed as such, a test to be
mended. What fails twice has failed, and so have more than LIMIT tests (5): those are no coincidence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FAILED = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main(arguments: list[str]) -> int:
    """Return pytest's exit code, 1 where there is nothing to run again or too much."""
    limit = int(arguments[0]) if arguments else 5
    failed = list(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    if not 0 < len(failed) <= limit:
        print(f"{len(failed)} tests failed; up to {limit} are run once more.", flush=True)
        return 1
    print("Run once more, alone:", *failed, sep="\n  ", flush=True)
    code = int(pytest.main(["--last-failed", "--last-failed-no-failures=none", "-n0"]))
    if code == 0:
        print("Passed the second time; mend them:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
