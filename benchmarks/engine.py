"""Engine benchmark: the torch engine against transformers on the same conversations.

32 conversations arrive a few milliseconds apart and hold several turns each; a turn's length is
drawn beforehand, the same for every side. The sides, all sampling at temperature 1 on the same
weights with all of the machine:

- the engine, which also returns log-probs;
- `generate`, over all conversations ready when the call before ended, left-padded, with the
  cache, no log-probs asked for; a call lasts as long as its longest turn;
- transformers' continuous batching, fed as conversations become ready; starting and stopping its
  manager is not counted.

Each side is a process of its own. It is tried with one thread, with two that sleep when idle and
with two that spin a while first; its fastest setting takes part in rounds that alternate the sides.
Ratios are medians over rounds. Only tokens that belong to a turn are counted.

Plain: a setting is tried with conversations of one turn, and there are 3 rounds with the smaller
model and 2 with the larger. `--full`: settings are tried with whole conversations, 7 rounds.
`--quick`: one round.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3ForCausalLM
from transformers.utils import logging

from rollart.cli.bench import Effort
from rollart.inference.torch.engine import TorchEngine
from rollart.inference.torch.options import TorchEngineOptions
from rollart.models.tiny import make_tiny
from rollart.models.tokenizer import build_tokenizer
from rollart.types import Request, Sampling, TrajectoryId, Version

NAME = "engine"
SIZES = ("1M", "5M")
ROUNDS: dict[Effort, dict[str, int]] = {
    "quick": {"1M": 1, "5M": 1},
    "plain": {"1M": 3, "5M": 2},
    "full": {"1M": 7, "5M": 7},
}
CONVERSATIONS = 32
TURNS = 6
GAP_S = 0.005
PAD = 0
TOKENS = 256
MAX_LENGTH = 768
SETTINGS = {"1 thread": (1, ""), "2 sleeping": (2, "PASSIVE"), "2 spinning": (2, "")}
"""Threads, and how they wait (OMP_WAIT_POLICY): with nothing said they spin a while, then sleep."""


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

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first arrival."""
        return time.perf_counter() - self._start_s

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


def make_engine(model: Qwen3ForCausalLM, *, threads: int) -> TorchEngine:
    """Make the engine once per model, as a run does."""
    return TorchEngine(
        model_config=model.config.to_dict(),
        weights=model.state_dict(),
        options=TorchEngineOptions(
            rows=CONVERSATIONS, cached_sessions=0, max_length=MAX_LENGTH, threads=threads
        ),
        version=Version(0),
    )


def run_engine(engine: TorchEngine, conversations: list[Conversation]) -> float:
    """Hold the conversations with the torch engine; return the seconds."""
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
    return arrivals.elapsed_s


def run_generate(model: Qwen3ForCausalLM, conversations: list[Conversation]) -> float:
    """Hold the conversations with `generate`; return the seconds."""
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
    return arrivals.elapsed_s


def run_continuous(model: Qwen3ForCausalLM, conversations: list[Conversation]) -> float:
    """Hold the conversations with transformers' continuous batching; return the seconds."""
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
        return arrivals.elapsed_s


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


Side = Callable[[list[Conversation]], float]
SIDES = ("engine", "generate", "continuous_batching")


def make_side(name: str, *, size: str, threads: int) -> Side:
    """Return one side, all of the same weights."""
    tokenizer = build_tokenizer([__doc__ or NAME])
    model = make_tiny(size, seed=0, tokenizer=tokenizer).eval()
    match name:
        case "engine":
            return partial(run_engine, make_engine(model, threads=threads))
        case "generate":
            return partial(run_generate, model)
        case _:
            return partial(run_continuous, model)


def serve(name: str, *, size: str, threads: int) -> None:
    """Be one side: for each line, a number of turns, hold conversations and print the seconds."""
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    side = make_side(name, size=size, threads=threads)
    print("ready", flush=True)
    for line in sys.stdin:
        print(side(make_conversations(turns=int(line))), flush=True)


class SideProcess:
    """One side in a process of its own; starting does not wait until it is ready."""

    def __init__(self, name: str, *, size: str, setting: str) -> None:
        threads, policy = SETTINGS[setting]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment.pop("OMP_WAIT_POLICY", None)
        if policy:
            environment["OMP_WAIT_POLICY"] = policy
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, size, str(threads)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process; a second call does nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def await_ready(self) -> None:
        """Wait until it has loaded its model."""
        assert self._read() == "ready"

    def hold(self, *, turns: int) -> float:
        """Let it hold the conversations; return the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{turns}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a side of the benchmark ended: see above")
        return line.strip()


def measure(
    size: str, *, trial_turns: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return sampled tokens a second of every side, round by round, and the settings they had."""
    sampled = sum(sum(each.lengths) for each in make_conversations(turns=TURNS))
    speeds: dict[str, list[float]] = {name: [] for name in SIDES}
    best: dict[str, str] = {}
    with ExitStack() as stack:
        sides: dict[str, SideProcess] = {}
        for name in SIDES:
            best[name], sides[name] = _fastest(name, stack, size=size, trial_turns=trial_turns)
        for _ in range(rounds):
            for name, side in sides.items():
                speeds[name].append(sampled / side.hold(turns=TURNS))
    return speeds, best


def _fastest(
    name: str, stack: ExitStack, *, size: str, trial_turns: int
) -> tuple[str, SideProcess]:
    """Try a side in every setting; keep the fastest process and end the others."""
    tried = {setting: SideProcess(name, size=size, setting=setting) for setting in SETTINGS}
    for side in tried.values():
        stack.callback(side.close)
    for side in tried.values():
        side.await_ready()
    took_s: dict[str, float] = {}
    for setting, side in tried.items():
        side.hold(turns=1)  # the first call warms up
        took_s[setting] = side.hold(turns=trial_turns)
    print(f"{size} {name}: {took_s}", file=sys.stderr, flush=True)
    best = min(took_s, key=took_s.__getitem__)
    for setting, side in tried.items():
        if setting != best:
            side.close()
    return best, tried[best]


def run(*, effort: Effort) -> dict[str, object]:
    """Hold the conversations with every side, with every model size."""
    trial_turns = TURNS if effort == "full" else 1
    return report(
        {
            size: measure(size, trial_turns=trial_turns, rounds=rounds)
            for size, rounds in ROUNDS[effort].items()
        }
    )


def report(
    measured: Mapping[str, tuple[Mapping[str, Sequence[float]], Mapping[str, str]]],
) -> dict[str, object]:
    """Return the engine's speed over each baseline from what `measure` gave, by model size."""

    def over(baseline: str) -> dict[str, float]:
        return {
            size: round(
                statistics.median(
                    mine / theirs
                    for mine, theirs in zip(sides["engine"], sides[baseline], strict=True)
                ),
                2,
            )
            for size, (sides, _) in measured.items()
        }

    return {
        "over_generate": over("generate"),
        "over_continuous_batching": over("continuous_batching"),
        "tokens_per_s": {
            size: {name: round(statistics.median(values)) for name, values in sides.items()}
            for size, (sides, _) in measured.items()
        },
        "settings": {size: dict(best) for size, (_, best) in measured.items()},
        "conversations": CONVERSATIONS,
        "turns": TURNS,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("threads", type=int)
    chosen = parser.parse_args()
    serve(chosen.side, size=chosen.size, threads=chosen.threads)
