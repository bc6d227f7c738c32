"""Gives one target inputs that reach code which no input before has reached (atheris, libFuzzer).

    python tests/dashboard/coverage_fuzz.py TARGET FOLDER SECONDS [libFuzzer's options]

FOLDER keeps the inputs that reached something new: the next call goes on with them. Ends with 77 where
a target raises what it does not document, or takes longer than 20 s: `FOLDER/TARGET-work` then has the input,
and the newest ones before it as a msgpack list.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import atheris
import msgspec

sys.path[:0] = [str(Path(__file__).parents[levels]) for levels in (0, 1, 2)]
sys.path.append(str(Path(__file__).parents[1] / "probe"))
sys.path.append(str(Path(__file__).parent / "serving"))

with atheris.instrument_imports(include=["probe", "dashboard"]):
    from api_server import fill, serving
    from fuzz_cases import MOST_BYTES, Codec, odd_inputs
    from fuzz_queries import QUERIES, ask_raw
    from fuzz_targets import TARGETS, Target

MOST_S = 20
MOST_MIB = 2048
NEWEST = 400
"""Inputs that are kept for a target whose failure hangs on those before."""


def http_target(folder: Path) -> Target:
    """Requests to a real server with a full run; it stays up until the process ends."""
    server = serving(folder).__enter__()
    fill(server, is_full=True)
    server.store.commit()

    def take(data: bytes) -> None:
        status = ask_raw(server, data[:20_000].replace(b"\n", b"%0a"))
        assert status is None or status < 500, status

    return Target([query.encode() for query in QUERIES], take, ())


def mutator(codec: Codec) -> Callable[[bytes, int, int], bytes]:
    """Half of the changes keep the format and put an odd value somewhere; libFuzzer makes the others."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if random.Random(seed).random() < 0.5:
            try:
                codec[0](data)
                *_, changed = odd_inputs([data], seed=seed, count=2, codec=codec)
            except Exception:  # noqa: BLE001 - not of this format any more
                changed = b""
            if 0 < len(changed) <= most:
                return changed
        return bytes(atheris.Mutate(data, most))

    return mutate


def main() -> None:
    name, folder, seconds, *options = sys.argv[1:]
    corpus, work = Path(folder) / name, Path(folder) / f"{name}-work"
    for path in (corpus, work):
        path.mkdir(parents=True, exist_ok=True)
    target = http_target(work) if name == "http" else TARGETS[name](work)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    newest: deque[bytes] = deque(maxlen=NEWEST)

    def one(data: bytes) -> None:
        newest.append(data)
        try:
            with contextlib.suppress(*target.refusals):
                target.take(data)
        except BaseException:
            (work / "newest.msgpack").write_bytes(msgspec.msgpack.encode(list(newest)))
            raise

    limits = [f"-max_total_time={seconds}", f"-timeout={MOST_S}", f"-rss_limit_mb={MOST_MIB}"]
    limits += [f"-max_len={min(MOST_BYTES, 20_000)}", f"-artifact_prefix={work}/", "-print_final_stats=1"]
    changes = {} if target.codec is None else {"custom_mutator": mutator(target.codec)}
    atheris.Setup([sys.argv[0], *limits, *options, str(corpus)], one, **changes)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
