"""Worlds: a plan as a simulated cluster, whole or as a smaller likeness of itself.

A likeness has a part of the groups, the environments and the GPUs. Where engines do not divide
evenly, their number is rounded and their hardware is made faster or slower by what was rounded, so
that work per unit of speed stays what it is in the whole.
"""

from dataclasses import dataclass, replace

from rollart.planning.plan import Plan, Share
from rollart.planning.problem import Problem
from rollart.sim.cluster import Cluster, ClusterDurations, Disaggregation, RolloutPool
from rollart.sim.hardware import Gpu
from rollart.sim.workload import SyntheticWorkload
from rollart.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of a problem is simulated, and for how long."""

    attempts: int
    """Attempts a step is shrunk to, if it has more."""
    steps: int
    skip: int
    """Steps at the start that fill the pipeline and do not count."""
    seed: int = 0


def make_world(problem: Problem, plan: Plan, *, scale: Scale) -> World:
    """Return the world in which a plan is tried."""
    rules = problem.rules
    groups = max(2, round(scale.attempts / rules.batching.group_size))
    groups = min(groups, rules.batching.groups_per_step)
    part = groups / rules.batching.groups_per_step
    cluster = _cluster(problem, plan, part)
    workload = SyntheticWorkload(problem.tasks, seed=rules.seed + scale.seed)
    return World(
        rules=replace(
            rules,
            steps=scale.steps,
            seed=rules.seed + scale.seed,
            batching=replace(rules.batching, groups_per_step=groups),
            staleness=replace(rules.staleness, alpha=plan.alpha),
            redundancy=problem.with_redundancy(round(plan.extra_groups * part)),
        ),
        workload=workload,
        make_engines=cluster.make_engines,
        durations=ClusterDurations(cluster),
        slots=max(1, round(plan.slots * part)),
        routing=replace(problem.routing, affinity=plan.affinity if rules.mode.affinity else {}),
        rewards=problem.rewards,
        call_s=problem.constants.rpc_s,
    )


def _cluster(problem: Problem, plan: Plan, part: float) -> Cluster:
    lend_tp = min(problem.tps(plan.train)) if problem.rules.lending.enabled else 0
    train_gpus = max(1, lend_tp, round(plan.train_gpus * part))
    link = problem.weights_link(plan.rollout_pools)
    return Cluster(
        model=problem.model,
        rollout=tuple(_pool(share, part) for share in plan.rollout),
        train_gpu=_faster(plan.train.gpu, plan.train_gpus * part / train_gpus),
        train_gpus=train_gpus,
        constants=problem.constants,
        reuse_prefixes=problem.reuse_prefixes,
        blocking_weights=problem.blocking_weights,
        push_link=link,
        pull_link=link,
        lend_tp=lend_tp,
        state_gpus=plan.train_gpus,
    )


def _pool(share: Share, part: float) -> RolloutPool:
    engines = max(1, round(share.engines * part))
    gpu = _faster(share.pool.gpu, share.engines * part / engines)
    split = Disaggregation(prefill=share.prefill, decode=share.decode) if share.is_split else None
    return RolloutPool(
        name=share.pool.name,
        gpu=gpu,
        gpus=engines * share.tp * max(1, share.prefill + share.decode),
        tp=share.tp,
        disaggregation=split,
    )


def _faster(gpu: Gpu, factor: float) -> Gpu:
    """Return a GPU that computes and reads so many times as fast."""
    if factor == 1:
        return gpu
    return replace(gpu, dense_tflops=gpu.dense_tflops * factor, hbm_tb_s=gpu.hbm_tb_s * factor)
