"""The trainer's side of the link: publishes versions as told on standard input.

A version is the one before with every number nudged, as by an optimizer step. Lines in:
`ORDER VERSION`; lines out: JSON with the seconds of the push and the checksum of one array.
"""

import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.weight_links.ray_nodes import joined
from rollart.types import Version
from rollart.weights.store import open_store

PROBE = "model.embed_tokens.weight"


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    with joined(told["ray"], "trainer"):
        serve(told)


def serve(told: dict[str, Any]) -> None:
    """Publish versions until the input ends."""
    draw = np.random.default_rng(1)
    weights = {
        name: draw.standard_normal(shape, np.float32) * np.float32(0.02)
        for name, shape in told["shapes"].items()
    }
    stores = {
        order: open_store(kind, place, 2, bucket_bytes=told["bucket_bytes"])
        for order, (kind, place) in told["trainer"].items()
    }
    print("ready", flush=True)
    for line in sys.stdin:
        order, version = line.split()
        for array in weights.values():
            np.multiply(array, np.float32(1.0 + 1e-4), out=array)
        start_s = time.perf_counter()
        stores[order].publish(Version(int(version)), weights)
        push_s = time.perf_counter() - start_s
        print(json.dumps({"push_s": push_s, "checksum": zlib.crc32(weights[PROBE])}), flush=True)
    for store in stores.values():
        store.close()


if __name__ == "__main__":
    main()
