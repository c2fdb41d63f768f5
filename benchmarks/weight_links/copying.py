"""Shared memory against memcpy: publish and fetch of a version, and one copy of as many bytes.

memcpy is `numpy.copyto` between two arrays whose pages are all there. Publish and fetch is the
whole way: `SharedMemoryStore.publish` in this process, then in another `fetch` and one read in
every page of every array. Both are warm: a store in use takes a pruned version's memory again.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rollart.types import Version
from rollart.weights.shared_memory import MEMORY_FILES, SharedMemoryStore

ARRAYS = 16
_READER = """
import sys, time
from rollart.weights.shared_memory import SharedMemoryStore
store = SharedMemoryStore(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    start_s = time.perf_counter()
    weights = store.fetch(int(line))
    total = sum(float(array.reshape(-1)[::1024].sum()) for array in weights.values())
    print(time.perf_counter() - start_s, flush=True)
    del weights
"""


def compare(total_bytes: int, *, rounds: int) -> dict[str, float]:
    """Return the median ratio of the two bandwidths, and both in GB/s."""
    base = MEMORY_FILES if MEMORY_FILES.is_dir() else Path(tempfile.gettempdir())
    count = total_bytes // ARRAYS // 4
    weights = {f"layer.{index}": np.ones(count, np.float32) for index in range(ARRAYS)}
    source, target = np.ones(total_bytes // 4, np.float32), np.ones(total_bytes // 4, np.float32)
    copies: list[float] = []
    moves: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rollart-bench-", dir=base) as directory:
        store = SharedMemoryStore(directory, keep=1)
        reader = subprocess.Popen(
            [sys.executable, "-c", _READER, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdin is not None and reader.stdout is not None
        try:
            reader.stdout.readline()
            for version in range(rounds + 3):
                start_s = time.perf_counter()
                np.copyto(target, source)
                copy_s = time.perf_counter() - start_s
                start_s = time.perf_counter()
                store.publish(Version(version), weights)
                publish_s = time.perf_counter() - start_s
                reader.stdin.write(f"{version}\n")
                reader.stdin.flush()
                fetch_s = float(reader.stdout.readline())
                if version >= 3:
                    copies.append(copy_s)
                    moves.append(publish_s + fetch_s)
        finally:
            reader.stdin.close()
            reader.wait()
            store.close()
    pairs = zip(copies, moves, strict=True)
    return {
        "ratio": statistics.median(copy / move for copy, move in pairs),
        "memcpy_gb_per_s": total_bytes / statistics.median(copies) / 1e9,
        "publish_fetch_gb_per_s": total_bytes / statistics.median(moves) / 1e9,
    }
