"""Weights benchmark: what of a push and a pull over a slow link an engine feels, by store.

Two network namespaces are joined by a link shaped with tc. On one side a trainer pushes versions;
on the other, beside a store, a torch engine decodes all the time. Two orders, interleaved:

- naive: the engine stops, the version is pushed, then pulled, then loaded;
- overlapped, as a run does it: the engine decodes while the version is pushed and prefetches
  buckets as they arrive; told that it is published, it stops, takes what is missing, loads it.

`exposed_over_pull` is the time the engine stood for the pull over the time spent pulling;
`exposed_over_naive` the same over the naive push and pull. Loading is the same in both orders and
is reported beside: `stopped_over_naive` counts it on the overlapped side alone.

Without the link: shared memory against memcpy, see `weight_links/copying.py`.

Plain: 3 rounds a store, 15 copies. `--full`: 9 rounds, 31 copies. `--quick`: 1 round with a smaller
model, 3 copies.
"""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.weight_links.copying import compare
from benchmarks.weight_links.link import Link, shaped_link
from benchmarks.weight_links.places import STORES, Openings, open_places
from rollart.cli.bench import Effort
from rollart.errors import InvariantError, UserError

NAME = "weights"
RATE_MBIT = 400
WARM_ROUNDS = 3
"""Until then a puller takes new memory for every version."""
BUCKET_BYTES = 8 * 2**20
MODEL = {
    "vocab_size": 16384,
    "hidden_size": 448,
    "intermediate_size": 1344,
    "num_hidden_layers": 8,
    "num_attention_heads": 14,
    "num_key_value_heads": 7,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
SMALL = {**MODEL, "vocab_size": 4096, "num_hidden_layers": 4}
SIZES = {"100MB": 100 * 10**6, "1GB": 10**9}


def run(*, effort: Effort) -> dict[str, object]:
    """Measure every store over the link, then shared memory without it."""
    is_quick = effort == "quick"
    model = SMALL if is_quick else MODEL
    rounds, copies_each = {"quick": (1, 3), "plain": (3, 15), "full": (9, 31)}[effort]
    signal.signal(signal.SIGTERM, _end)
    with shaped_link(rate_mbit=RATE_MBIT) as link:
        stores = {store: measure(store, link, model=model, rounds=rounds) for store in STORES}
    sizes = {"100MB": SIZES["100MB"]} if is_quick else SIZES
    copies = {name: compare(size, rounds=copies_each) for name, size in sizes.items()}

    def by_store(name: str) -> dict[str, float]:
        return {store: round(figures[name], 4) for store, figures in stores.items()}

    return {
        "exposed_over_pull": by_store("exposed_over_pull"),
        "exposed_over_naive": by_store("exposed_over_naive"),
        "shm_over_memcpy": {name: round(each["ratio"], 2) for name, each in copies.items()},
        "stopped_over_naive": by_store("stopped_over_naive"),
        "seconds": {
            store: {name: round(value, 4) for name, value in figures.items() if name[-2:] == "_s"}
            for store, figures in stores.items()
        },
        "shm": {name: {k: round(v, 2) for k, v in each.items()} for name, each in copies.items()},
        "model_bytes": sum(map(_bytes, shapes_of(model).values())),
        "bucket_bytes": BUCKET_BYTES,
        "rate_mbit": RATE_MBIT,
    }


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Take the link down on SIGTERM too."""
    sys.exit(128 + number)


def measure(store: str, link: Link, *, model: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return the medians of one store; the first rounds warm memory up and are left out."""
    with ExitStack() as stack:
        openings = stack.enter_context(open_places(store, link))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollart-bench-"))
        told = Path(directory) / "told.json"
        told.write_text(
            json.dumps(
                {
                    "model": model,
                    "shapes": shapes_of(model),
                    "bucket_bytes": BUCKET_BYTES,
                    "trainer": openings.trainer,
                    "engines": openings.engines,
                    "ray": None if openings.ray is None else asdict(openings.ray),
                }
            )
        )
        engines = Process("engines", link, told, openings, stack)
        engines.await_ready()  # what a store makes on first use is then beside the engines
        trainer = Process("trainer", link, told, openings, stack)
        trainer.await_ready()
        every = [_round(trainer, engines, number) for number in range(1, WARM_ROUNDS + rounds + 1)]
        taken = every[WARM_ROUNDS:]
    return {name: statistics.median(each[name] for each in taken) for name in taken[0]}


def _round(trainer: "Process", engines: "Process", number: int) -> dict[str, float]:
    """Change weights in both orders, the naive one first; versions are told apart by number."""
    first, second = 2 * number, 2 * number + 1
    engines.ask("stop")
    pushed = trainer.ask(f"naive {first}")
    naive = engines.ask(f"naive {first}")
    again = trainer.ask(f"overlapped {second}")
    ours = engines.ask(f"overlapped {second}")
    if (naive["checksum"], ours["checksum"]) != (pushed["checksum"], again["checksum"]):
        raise InvariantError("the engine loaded other bytes than the trainer published")
    naive_s = pushed["push_s"] + naive["exposed_s"]
    return {
        "exposed_over_pull": ours["exposed_s"] / ours["pull_s"],
        "exposed_over_naive": ours["exposed_s"] / naive_s,
        "stopped_over_naive": ours["stopped_s"] / naive_s,
        "naive_push_s": pushed["push_s"],
        "naive_pull_s": naive["exposed_s"],
        "push_s": again["push_s"],
        "pull_s": ours["pull_s"],
        "exposed_s": ours["exposed_s"],
        "load_s": ours["load_s"],
        "tokens_per_s": ours["tokens"] / again["push_s"],
    }


class Process:
    """One side of the link, spoken to line by line."""

    def __init__(
        self, side: str, link: Link, told: Path, openings: Openings, stack: ExitStack
    ) -> None:
        module = "trainer_side" if side == "trainer" else "engine_side"
        argv = [sys.executable, "-m", f"benchmarks.weight_links.{module}", str(told)]
        self._side = side
        self._process = subprocess.Popen(
            link.command(side, *argv),
            cwd=Path(__file__).parent.parent,
            env=os.environ | openings.env | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)

    def await_ready(self) -> None:
        """Wait until it takes orders."""
        self._read()

    def ask(self, line: str) -> dict[str, float]:
        """Send a line and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"the benchmark's side of the {self._side} ended: see above")
        return line

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def shapes_of(model: dict[str, Any]) -> dict[str, list[int]]:
    """Return the parameters of a model by Hugging Face name."""
    with torch.device("meta"):
        made = Qwen3ForCausalLM(Qwen3Config(**model))
    return {name: list(value.shape) for name, value in made.state_dict().items()}


def _bytes(shape: list[int]) -> int:
    return 4 * math.prod(shape)
