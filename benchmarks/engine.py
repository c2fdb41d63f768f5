"""Engine benchmark: the torch engine against transformers on the same conversations.

32 conversations arrive a few milliseconds apart and hold several turns each; a turn's length is
drawn beforehand, the same for every side. The sides, all sampling at temperature 1 on the same
weights with all of the machine:

- the engine, which also returns log-probs;
- `generate`, over all conversations ready when the call before ended, left-padded, with the
  cache, no log-probs asked for; a call lasts as long as its longest turn;
- transformers' continuous batching, fed as conversations become ready.

Rounds are interleaved; figures are medians. Only tokens that belong to a turn are counted.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3ForCausalLM
from transformers.utils import logging

from rollart.engines.torch.engine import TorchEngine
from rollart.engines.torch.options import TorchEngineOptions
from rollart.models.tiny import make_tiny
from rollart.models.tokenizer import build_tokenizer
from rollart.types import Request, Sampling, TrajectoryId, Version

NAME = "engine"
SIZES = ("1M", "5M")
CONVERSATIONS = 32
TURNS = 6
GAP_S = 0.005
PAD = 0
TOKENS = 256
THREADS = 2
MAX_LENGTH = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation: its prompt, then per turn how much is sampled and what is answered."""

    arrival_s: float
    prompt: list[int]
    lengths: tuple[int, ...]
    answers: tuple[list[int], ...]


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a conversation stands."""

    conversation: Conversation
    tokens: list[int]
    turn: int = 0

    @property
    def length(self) -> int:
        """Tokens the current turn samples."""
        return self.conversation.lengths[self.turn]

    def complete(self, sampled: list[int]) -> bool:
        """Take a turn's tokens; say whether another turn follows."""
        self.tokens = self.tokens + sampled + self.conversation.answers[self.turn]
        self.turn += 1
        return self.turn < len(self.conversation.lengths)


def make_conversations(*, turns: int) -> list[Conversation]:
    """Draw the workload: prompts near 150 tokens, turns of 16 to 48, answers of 12 to 36."""
    draw = random.Random(1)

    def tokens(low: int, high: int) -> list[int]:
        return [draw.randrange(1, TOKENS) for _ in range(draw.randint(low, high))]

    return [
        Conversation(
            arrival_s=index * GAP_S,
            prompt=tokens(120, 180),
            lengths=tuple(draw.randint(16, 48) for _ in range(turns)),
            answers=tuple(tokens(12, 36) for _ in range(turns)),
        )
        for index in range(CONVERSATIONS)
    ]


class Arrivals:
    """Hands out conversations as their time comes."""

    def __init__(self, conversations: list[Conversation]) -> None:
        self._waiting = [Progress(conversation=each, tokens=each.prompt) for each in conversations]
        self._start_s = time.perf_counter()

    @property
    def pending(self) -> bool:
        """Whether some have not arrived."""
        return bool(self._waiting)

    def take(self, *, idle: bool) -> list[Progress]:
        """Return what has arrived; when `idle`, wait for the next."""
        while True:
            now = time.perf_counter() - self._start_s
            count = 0
            while count < len(self._waiting):
                if self._waiting[count].conversation.arrival_s > now:
                    break
                count += 1
            if count or not idle or not self._waiting:
                taken, self._waiting = self._waiting[:count], self._waiting[count:]
                return taken
            time.sleep(self._waiting[0].conversation.arrival_s - now)


def make_engine(model: Qwen3ForCausalLM) -> TorchEngine:
    """Make the engine once per model, as a run does."""
    return TorchEngine(
        model_config=model.config.to_dict(),
        weights=model.state_dict(),
        options=TorchEngineOptions(
            rows=CONVERSATIONS, cached_sessions=0, max_length=MAX_LENGTH, threads=THREADS
        ),
        version=Version(0),
    )


def run_engine(engine: TorchEngine, conversations: list[Conversation]) -> None:
    """Hold the conversations with the torch engine."""
    arrivals = Arrivals(conversations)
    active: dict[int, Progress] = {}

    def ask(session: int, progress: Progress) -> None:
        engine.add(
            Request(
                session=TrajectoryId(session),
                turn=progress.turn,
                domain=NAME,
                tokens=tuple(progress.tokens),
                sampling=Sampling(max_tokens=progress.length),
                stop=(),
                seed=session * 100 + progress.turn,
            )
        )

    session = 0
    while active or arrivals.pending:
        for progress in arrivals.take(idle=not active):
            active[session] = progress
            ask(session, progress)
            session += 1
        for done in engine.step():
            if active[done.session].complete(list(done.tokens)):
                ask(done.session, active[done.session])
            else:
                engine.forget(done.session)
                del active[done.session]


def run_generate(model: Qwen3ForCausalLM, conversations: list[Conversation]) -> None:
    """Hold the conversations with `generate`."""
    arrivals = Arrivals(conversations)
    active: list[Progress] = []
    while active or arrivals.pending:
        active += arrivals.take(idle=not active)
        longest = max(len(each.tokens) for each in active)
        ids = torch.full((len(active), longest), PAD)
        mask = torch.zeros_like(ids)
        for row, each in enumerate(active):
            ids[row, longest - len(each.tokens) :] = torch.tensor(each.tokens)
            mask[row, longest - len(each.tokens) :] = 1
        with torch.inference_mode():
            out = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
                ids,
                attention_mask=mask,
                generation_config=_generation(max(each.length for each in active)),
            )
        rows = out[:, longest:].tolist()
        active = [
            each
            for each, row in zip(active, rows, strict=True)
            if each.complete(row[: each.length])
        ]


def run_continuous(model: Qwen3ForCausalLM, conversations: list[Conversation]) -> None:
    """Hold the conversations with transformers' continuous batching."""
    config = ContinuousBatchingConfig(
        page_size=32, num_blocks=CONVERSATIONS * MAX_LENGTH // 32, max_batch_tokens=2048, seed=1
    )
    with model.continuous_batching_context_manager(
        generation_config=_generation(64), continuous_batching_config=config, warmup=False
    ) as manager:
        arrivals = Arrivals(conversations)
        active: dict[str, Progress] = {}

        def ask(progress: Progress) -> None:
            name = manager.add_request(progress.tokens, max_new_tokens=progress.length)
            assert name is not None
            active[name] = progress

        while active or arrivals.pending:
            for progress in arrivals.take(idle=not active):
                ask(progress)
            result = manager.get_result(timeout=GAP_S if arrivals.pending else 30)
            if result is None or not result.is_finished():
                continue
            progress = active.pop(result.request_id)
            assert len(result.generated_tokens) == progress.length
            if progress.complete(list(result.generated_tokens)):
                ask(progress)


def _generation(count: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=count,
        pad_token_id=PAD,
        eos_token_id=-1,
    )


Side = Callable[[list[Conversation]], None]


def make_sides(size: str) -> dict[str, Side]:
    """Return every side with a model of its own, all of the same weights."""
    tokenizer = build_tokenizer([__doc__ or NAME])
    models = [make_tiny(size, seed=0, tokenizer=tokenizer).eval() for _ in range(3)]
    return {
        "engine": partial(run_engine, make_engine(models[0])),
        "generate": partial(run_generate, models[1]),
        "continuous_batching": partial(run_continuous, models[2]),
    }


def measure(size: str, *, rounds: int) -> dict[str, list[float]]:
    """Return sampled tokens per second of every side, round by round."""
    sides = make_sides(size)
    conversations = make_conversations(turns=TURNS)
    sampled = sum(sum(each.lengths) for each in conversations)
    for side in sides.values():
        side(make_conversations(turns=1))
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start_s = time.perf_counter()
            side(conversations)
            speeds[name].append(sampled / (time.perf_counter() - start_s))
    return speeds


def run(*, quick: bool) -> dict[str, object]:
    """Measure in a process of its own, whose threads sleep when idle instead of spinning.

    Spinning threads make two-thread figures of every side arbitrary on a machine that is not
    otherwise silent.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, __file__, *(["--quick"] if quick else [])]
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout)


def compare(*, quick: bool) -> dict[str, object]:
    """Return the engine's speed over each baseline, by model size."""
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    speeds = {size: measure(size, rounds=2 if quick else 5) for size in SIZES}

    def over(baseline: str) -> dict[str, float]:
        return {
            size: round(
                statistics.median(
                    mine / theirs
                    for mine, theirs in zip(sides["engine"], sides[baseline], strict=True)
                ),
                2,
            )
            for size, sides in speeds.items()
        }

    return {
        "over_generate": over("generate"),
        "over_continuous_batching": over("continuous_batching"),
        "tokens_per_s": {
            size: {name: round(statistics.median(values)) for name, values in sides.items()}
            for size, sides in speeds.items()
        },
        "conversations": CONVERSATIONS,
        "turns": TURNS,
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(json.dumps(compare(quick=parser.parse_args().quick), indent=2))
