"""Reward functions, good and bad, through whole runs: scripted engine, real processes."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkout import SUPPORT
from live_parts import Countdown, Live

from rollart.config import Config, TaskOptions
from rollart.config.options import RayOptions, RewardPart, are_compared
from rollart.control.autoscaling import Scaling
from rollart.control.rules import MODES, Batching, Filter, Redundancy, Retry, Rules
from rollart.errors import ConfigError, UserError
from rollart.events import Score, ScoreFailed, TrajectoryFinished, TrajectoryScored
from rollart.observe.replay import replay
from rollart.pipelines.rewards import open_rewards
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability

GOOD = SUPPORT / "loop_rewards.py"
BAD = SUPPORT / "bad_rewards.py"


def make_config(parts: dict[str, RewardPart], **options) -> Config:
    invoker = {
        "scaling": Scaling(max_instances=2, idle_s=1.0),
        "limits": CallLimits(timeout_s=100.0),
        "reliability": Reliability(attempts=1),
        **options,
    }
    task = TaskOptions(env="countdown", rewards=parts)
    return Config(tasks={"countdown": task}, rewards=InvokerOptions(**invoker))


def make_live(directory: Path, parts: dict[str, RewardPart], **rules) -> Live:
    values = {
        "steps": 2,
        "mode": MODES["rollart"],
        "batching": Batching(groups_per_step=2, group_size=2),
        "retry": Retry(backoff_s=0.01, backoff_max_s=0.02),
        "filter": Filter(drop_zero_variance=False),
        **rules,
    }
    scoring = "group" if are_compared(parts) else "each"
    return Live(
        rules=Rules(**values),
        directory=directory,
        make=lambda _slot: Countdown(turns=1),
        setup={"scoring": scoring},
    )


def run(
    live: Live, config: Config, said: list[str] | None = None, warned: list[str] | None = None
) -> dict:
    """Make a run with the config's rewards; return what the scores came to."""

    async def go() -> dict:
        async with AsyncExitStack() as stack:
            say = [] if said is None else said
            warn = [] if warned is None else warned
            opening = open_rewards(
                config, directory=live.directory, say=say.append, warn=warn.append
            )
            rewards = await stack.enter_async_context(opening)
            live.scorer = rewards.score
            await live._run()
            return rewards.summary({})

    return asyncio.run(go())


def prove(live: Live) -> dict:
    """Replay a run's log and see that every score was answered at most once."""
    proof = replay(live.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    events = [event for event, _ in live.seen]
    answered = [event.id for event in events if isinstance(event, TrajectoryScored | ScoreFailed)]
    asked = [
        i for _, commands in live.seen for c in commands if isinstance(c, Score) for i in c.ids
    ]
    assert len(answered) == len(set(answered))
    assert set(answered) <= set(asked)
    assert len(asked) == len(set(asked))
    return proof


def trained(live: Live) -> list:
    return [member for batch in live.batches for group in batch for member in group]


@pytest.mark.parametrize("mode", ["sync", "rollart"])
def test_what_functions_say_is_what_is_trained_on(mode, tmp_path):
    parts = {
        "id": RewardPart(function=f"{GOOD}:by_id", weight=2.0),
        "turns": RewardPart(function=f"{BAD}:turns", weight=-1.0),
    }
    live = make_live(tmp_path, parts, mode=MODES[mode])
    said: list[str] = []
    summary = run(live, make_config(parts), said)
    proof = prove(live)
    assert proof["ended"]["trained"] == 8
    assert [each.reward for each in trained(live)] == [
        2.0 * (each.id % 3) - 1.0 for each in trained(live)
    ]
    scored = [event for event, _ in live.seen if isinstance(event, TrajectoryScored)]
    third = {event.id: float(event.id % 3) for event in scored}
    assert {event.id: dict(event.parts) for event in scored} == {
        id_: {"id": value, "id/third": value, "turns": 1.0} for id_, value in third.items()
    }
    assert said == [
        f"reward countdown/id: {GOOD}:by_id by local",
        f"reward countdown/turns: {BAD}:turns by local",
    ]
    lines = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert len(lines) >= 2 * len(scored)
    assert {line["pool"] for line in lines} == {"local"}
    assert summary["failed"] == 0
    assert summary["cold_starts"] >= 1


def test_attempts_at_a_task_are_compared_with_each_other(tmp_path):
    parts = {"rank": RewardPart(function=f"{GOOD}:ranks")}
    live = make_live(tmp_path, parts)
    run(live, make_config(parts))
    assert prove(live)["ended"]["trained"] == 8
    groups = [[member.reward for member in group] for batch in live.batches for group in batch]
    assert groups == [[0.0, 1.0]] * 4
    asked = [c for _, commands in live.seen for c in commands if isinstance(c, Score)]
    assert {(command.together, len(command.ids)) for command in asked} == {(True, 2)}


def test_what_cannot_be_scored_is_left_out_and_never_zero(tmp_path):
    parts = {"some": RewardPart(function=f"{GOOD}:sometimes")}
    live = make_live(tmp_path, parts)
    run(live, make_config(parts))
    proof = prove(live)
    assert proof["ended"]["dropped:score_failed"] >= 1
    assert all(each.reward == each.id and each.id % 4 != 1 for each in trained(live))
    failed = [event for event, _ in live.seen if isinstance(event, ScoreFailed)]
    wanted = f"some: {GOOD}:sometimes raised RuntimeError: no grader here"
    assert all(wanted in event.message for event in failed)


REASONS = {
    "raises": "raised RuntimeError: no grader here",
    "not_a_number": "returned nan (float); wanted a finite number or a Reward",
    "nothing": "returned None (NoneType); wanted a finite number or a Reward",
    "a_string": "returned '1.0' (str); wanted a finite number or a Reward",
    "too_few": "(list of length 1); wanted a list of 2, one for each trajectory",
    "never_returns": "no answer within 0.3 s; its instance was killed",
    "prints_a_gigabyte": "it printed more than 1048576 bytes: print less",
    "writes_a_gigabyte": "bytes and was killed: print less",
    "leaves": "its instance exited with code 7; last output: last words",
}


@pytest.mark.parametrize("name", REASONS)
def test_a_function_that_never_scores_ends_the_run_with_its_reason(name, tmp_path):
    parts = {"bad": RewardPart(function=f"{BAD}:{name}")}
    live = make_live(tmp_path, parts, retry=Retry(give_up_after=4))
    limits = CallLimits(timeout_s=0.3 if name == "never_returns" else 100.0, output_bytes=2**21)
    with pytest.raises(UserError) as caught:
        run(live, make_config(parts, limits=limits))
    assert str(caught.value).startswith("4 scores in a row failed; the last: bad: ")
    assert REASONS[name] in str(caught.value)
    proof = prove(live)
    assert set(proof["ended"]) <= {"dropped:score_failed", "dropped:interrupted", "cancelled"}
    assert len(live.buffer) == 0


def test_a_function_that_raises_ends_a_run_soon_and_not_in_silence_however_it_is_tried(tmp_path):
    parts = {"bad": RewardPart(function=f"{BAD}:raises")}
    live = make_live(tmp_path, parts, retry=Retry(give_up_after=4))
    usual = Reliability(backoff_s=0.001, breaker_failures=2, breaker_rest_s=1000.0)
    warned: list[str] = []
    with pytest.raises(UserError, match="4 scores in a row failed; the last: bad: ") as caught:
        run(live, make_config(parts, reliability=usual), warned=warned)
    assert REASONS["raises"] in str(caught.value)
    (warning,) = warned
    assert warning.startswith(f"reward function {BAD}:raises failed (further failures")
    assert REASONS["raises"] in warning


def test_functions_that_hang_do_not_keep_a_run_from_ending(tmp_path):
    parts = {"slow": RewardPart(function=f"{GOOD}:sometimes_hangs")}
    live = make_live(tmp_path, parts, redundancy=Redundancy(extra_groups=4, choice="finished"))
    config = make_config(
        parts, scaling=Scaling(max_instances=6), limits=CallLimits(timeout_s=600.0)
    )
    run(live, config)
    assert prove(live)["ended"]["trained"] == 8
    assert all(each.reward == each.id for each in trained(live))


def test_a_judges_pool_is_shown_in_the_log(tmp_path):
    judge = {"base_url": "http://127.0.0.1:9/v1", "timeout_s": 60.0}
    parts = {"tone": RewardPart(function="judge", options={"judge": judge})}
    live = make_live(tmp_path, parts, retry=Retry(give_up_after=2))
    said: list[str] = []
    pool = "judge http://127.0.0.1:9/v1"
    with pytest.raises(UserError, match=f"the last: tone: judge: {re.escape(pool)}: Connect"):
        run(live, make_config(parts), said)
    told = f"local, asks {pool}, 8 questions at once in each process"
    assert said == [f"reward countdown/tone: judge by {told}"]
    lines = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert {line["pool"] for line in lines} == {told}


class Critic(ThreadingHTTPServer):
    """A judge that answers nonsense to every third question, and nobody before it is time."""

    daemon_threads = True

    def __init__(self, is_time: Callable[[], bool]) -> None:
        super().__init__(("127.0.0.1", 0), _CriticHandler)
        self.is_time = is_time
        self.lock = threading.Lock()
        self.asked = self.open = self.most_open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _CriticHandler(BaseHTTPRequestHandler):
    server: Critic

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        with server.lock:
            server.asked += 1
            said = "I cannot say." if server.asked % 3 == 0 else "Fine.\nGrade: 7"
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        while not server.is_time():
            time.sleep(0.01)
        time.sleep(0.02)  # one question too many would be seen meanwhile
        with server.lock:
            server.open -= 1
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_judges_pool_is_apart_and_what_it_says_badly_is_a_failed_score(tmp_path):
    live: Live

    def has_rolled_out() -> bool:
        """Say whether more attempts have ended than the judge, asked to its limit, knows of."""
        ended = sum(isinstance(event, TrajectoryFinished) for event, _ in tuple(live.seen))
        return ended >= 6 and critic.asked >= 2

    critic = Critic(has_rolled_out)
    thread = threading.Thread(target=critic.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    judge = {"base_url": critic.url, "concurrency": 2}
    parts = {"tone": RewardPart(function="judge", options={"judge": judge})}
    live = make_live(tmp_path, parts, redundancy=Redundancy(extra_groups=2))
    live.slots = 8
    config = make_config(parts, scaling=Scaling(max_instances=1, concurrency=4))
    said: list[str] = []
    try:
        summary = run(live, config, said)
    finally:
        critic.shutdown()
        thread.join()
        critic.server_close()
    assert {each.reward for each in trained(live)} == {0.7}
    assert prove(live)["ended"]["dropped:score_failed"] >= 1
    failed = [event.message for event, _ in live.seen if isinstance(event, ScoreFailed)]
    wanted = f"tone: judge: judge {critic.url}: the answer does not end with 'Grade: N' but"
    assert all(message.startswith(wanted) for message in failed)
    assert critic.most_open == 2
    told = f"local, asks judge {critic.url}, 2 questions at once in each process"
    assert said == [f"reward countdown/tone: judge by {told}"]
    assert summary["pools"] == {"countdown/tone": f"judge by {told}"}
    lines = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert {line["pool"] for line in lines} == {told}


def test_a_cluster_beside_the_runs_own_is_refused(tmp_path):
    parts = {"id": RewardPart(function=f"{GOOD}:by_id")}
    config = make_config(parts, kind="ray", address="host:1")
    config = replace(config, ray=RayOptions(address="local"))
    live = make_live(tmp_path, parts)
    with pytest.raises(ConfigError, match=r"^rewards\.address = 'host:1': a run joins one cluster"):
        run(live, config)


def test_environments_reward_where_no_function_does(tmp_path):
    config = make_config({})
    live = make_live(tmp_path, {})
    assert run(live, config) == {}
    assert prove(live)["ended"]["trained"] == 8
    assert all(each.reward == float(each.task.seed % 2) for each in trained(live))
    assert not (tmp_path / "rewards.jsonl").exists()
