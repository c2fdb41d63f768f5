"""Every algorithm written out in plain Python, one number at a time.

Nothing here is shared with the product: advantages, corrections, losses and weights are the
formulas of docs/algorithms.md on lists of floats. Where a formula stops the gradient it reads
`Drawn.held` instead of `Drawn.logp`, so that a difference quotient of `total` is the gradient.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from math import exp, inf, log, sqrt
from typing import Any

from benchmarks.algorithm_parts.batches import Attempt, Drawn

Values = Mapping[str, Any]
"""The keys of `[algorithm]`, all of them."""
TINY = 1e-6


def total(kind: str, values: Values, attempts: list[Attempt]) -> float:
    """Return the loss of a minibatch; sets the advantages and weights of its tokens."""
    chosen = prepare(kind, values, attempts)
    result = 0.0
    for attempt, losses in zip(attempts, token_losses(kind, values, attempts, chosen), strict=True):
        for token, loss in zip(attempt.tokens, losses, strict=True):
            result += token.weight * loss
    return result


def prepare(kind: str, values: Values, attempts: list[Attempt]) -> dict[int, bool]:
    """Set advantages and weights; return which tokens, by `id`, are chosen over the batch."""
    kept = [each for each in attempts if not is_rejected(values, each)]
    for attempt in attempts:
        for token in attempt.tokens:
            token.advantage = 0.0
    set_advantages(kind, values, kept)
    set_weights(values, attempts)
    chosen: dict[int, bool] = {}
    tokens = [token for attempt in attempts for token in attempt.tokens]
    if values.get("correction") == "m2po":
        chosen |= m2po_kept(tokens, usual(values, "bound", 0.04))
    if kind in ("clip_cov", "kl_cov"):
        chosen |= covariant(kind, values, tokens)
    return chosen


# Advantages


def set_advantages(kind: str, values: Values, attempts: list[Attempt]) -> None:
    """Give every token of these attempts its advantage."""
    name = values.get("advantage", kind)
    if name in ("turn_returns", "gigpo"):
        by_turn(name, values, attempts)
    elif name == "reinforce_plus_plus":
        reinforce_plus_plus(values, attempts)
    else:
        found = BY_ATTEMPT[name](values, attempts)
        for attempt, value in zip(attempts, found, strict=True):
            for token in attempt.tokens:
                token.advantage = value
    if name == "reinforce_plus_plus_baseline":
        whiten(attempts)


def members(attempts: list[Attempt], group: int) -> list[Attempt]:
    """Return the attempts of a group."""
    return [each for each in attempts if each.group == group]


def mean(numbers: list[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(numbers) / len(numbers) if numbers else 0.0


def deviation(numbers: list[float]) -> float:
    """Return the standard deviation that divides by n."""
    middle = mean(numbers)
    return sqrt(mean([(each - middle) ** 2 for each in numbers]))


def less_group_mean(attempts: list[Attempt], rewards: list[float]) -> list[float]:
    """Return rewards less their group's mean; 0 in a group of equal rewards."""
    result: list[float] = []
    for attempt, reward in zip(attempts, rewards, strict=True):
        pairs = zip(attempts, rewards, strict=True)
        own = [other for each, other in pairs if each.group == attempt.group]
        result.append(0.0 if min(own) == max(own) else reward - mean(own))
    return result


def plain(attempts: list[Attempt]) -> list[float]:
    """Return the rewards."""
    return [each.reward for each in attempts]


def standardised(attempts: list[Attempt], rewards: list[float]) -> list[float]:
    """Return rewards less their group's mean, over its deviation."""
    centred = less_group_mean(attempts, rewards)
    result: list[float] = []
    for attempt, value in zip(attempts, centred, strict=True):
        pairs = zip(attempts, rewards, strict=True)
        own = [other for each, other in pairs if each.group == attempt.group]
        result.append(value / (deviation(own) + TINY))
    return result


def rloo(_: Values, attempts: list[Attempt]) -> list[float]:
    """Return rewards less the mean of the others."""
    result: list[float] = []
    for attempt in attempts:
        others = [each.reward for each in members(attempts, attempt.group) if each is not attempt]
        is_equal = all(other == attempt.reward for other in others)
        result.append(0.0 if is_equal else attempt.reward - mean(others))
    return result


def opo(_: Values, attempts: list[Attempt]) -> list[float]:
    """Return rewards less their length-weighted mean."""
    result: list[float] = []
    for attempt in attempts:
        own = members(attempts, attempt.group)
        length = sum(len(each.tokens) for each in own)
        base = sum(len(each.tokens) * each.reward for each in own) / max(length, 1)
        is_equal = len({each.reward for each in own}) == 1
        result.append(0.0 if is_equal else attempt.reward - base)
    return result


def dapo(values: Values, attempts: list[Attempt]) -> list[float]:
    """Return standardised rewards with the penalty of overlong attempts."""
    limit, buffer = values["overlong_limit"], values["overlong_buffer"]
    shaped: list[float] = []
    for attempt in attempts:
        length, penalty = len(attempt.tokens), 0.0
        if limit and length > limit - buffer:
            penalty = -(length - (limit - buffer)) / buffer if length <= limit else -1.0
        shaped.append(attempt.reward + penalty)
    return standardised(attempts, shaped)


def lite_ppo(_: Values, attempts: list[Attempt]) -> list[float]:
    """Return centred rewards over the deviation of the batch."""
    scale = deviation(plain(attempts)) + TINY
    return [value / scale for value in less_group_mean(attempts, plain(attempts))]


def raft(values: Values, attempts: list[Attempt]) -> list[float]:
    """Return 1 for the best attempts of each group."""
    result: list[float] = []
    for attempt in attempts:
        best = max(each.reward for each in members(attempts, attempt.group))
        result.append(float(attempt.reward == best and best > values["above"]))
    return result


def max_rl(_: Values, attempts: list[Attempt]) -> list[float]:
    """Return centred rewards over the group's mean."""
    result: list[float] = []
    for attempt in attempts:
        own = [each.reward for each in members(attempts, attempt.group)]
        is_flat = mean(own) <= 0 or min(own) == max(own)
        result.append(0.0 if is_flat else (attempt.reward - mean(own)) / mean(own))
    return result


def pass_at_k(values: Values, attempts: list[Attempt]) -> list[float]:
    """Average the standardised reward of every set of k members, found by trying them all."""
    result: list[float] = []
    for attempt in attempts:
        own = members(attempts, attempt.group)
        right = [each.reward > values["above"] for each in own]
        sets = list(combinations(range(len(own)), min(values["k"], len(own))))
        best = [float(any(right[index] for index in each)) for each in sets]
        middle, scale = mean(best), deviation(best)
        place = next(index for index, each in enumerate(own) if each is attempt)
        mine = [value for value, each in zip(best, sets, strict=True) if place in each]
        result.append(mean([(value - middle) / scale for value in mine]) if scale else 0.0)
    return result


BY_ATTEMPT: dict[str, Callable[[Values, list[Attempt]], list[float]]] = {
    "reinforce": lambda _, attempts: plain(attempts),
    "grpo": lambda _, attempts: standardised(attempts, plain(attempts)),
    "dr_grpo": lambda _, attempts: less_group_mean(attempts, plain(attempts)),
    "reinforce_plus_plus_baseline": lambda _, each: less_group_mean(each, plain(each)),
    "rloo": rloo,
    "opo": opo,
    "dapo": dapo,
    "lite_ppo": lite_ppo,
    "raft_plus_plus": raft,
    "max_rl": max_rl,
    "pass_at_k": pass_at_k,
}


def whiten(attempts: list[Attempt]) -> None:
    """Put the advantages of all tokens in units of their deviation."""
    tokens = [token for attempt in attempts for token in attempt.tokens]
    found = [token.advantage for token in tokens]
    is_flat = not found or min(found) == max(found)
    for token in tokens:
        scale = sqrt(deviation(found) ** 2 + 1e-8)
        token.advantage = 0.0 if is_flat else (token.advantage - mean(found)) / scale
        # `found` holds the values from before: it is a list of its own.


def reinforce_plus_plus(values: Values, attempts: list[Attempt]) -> None:
    """Give each token the reward less the divergence from it on, whitened."""
    for attempt in attempts:
        value = attempt.reward
        for token in reversed(attempt.tokens):
            value -= values["reward_kl_coefficient"] * (token.proximal - token.reference)
            token.advantage = value
    whiten(attempts)


def by_turn(name: str, values: Values, attempts: list[Attempt]) -> None:
    """Give each turn its return, compared within the group or within equal states."""
    returns: dict[int, float] = {}
    for attempt in attempts:
        value = attempt.reward - sum(step.reward for step in attempt.steps)
        for step in reversed(attempt.steps):
            is_last = step is attempt.steps[-1]
            value = step.reward + (value if is_last else values["discount"] * value)
            returns[id(step)] = value
    episodes = plain(attempts)
    if name == "gigpo":
        episodes = normed(values, less_group_mean(attempts, episodes), attempts, episodes)
    for attempt, episode in zip(attempts, episodes, strict=True):
        own = members(attempts, attempt.group)
        for step in attempt.steps:
            rivals = [
                returns[id(each)]
                for other in own
                for each in other.steps
                if name == "turn_returns" or each.state == step.state
            ]
            value = step_value(values, returns[id(step)], rivals)
            if name == "gigpo":
                value = episode + values["state_weight"] * value
            for token in step.tokens:
                token.advantage = value


def step_value(values: Values, value: float, rivals: list[float]) -> float:
    """Return a turn's return against those it is compared with."""
    if values["norm"] == "none":
        return value
    if min(rivals) == max(rivals):
        return 0.0
    scale = deviation(rivals) + TINY if values["norm"] == "std" else 1.0
    return (value - mean(rivals)) / scale


def normed(
    values: Values, centred: list[float], attempts: list[Attempt], rewards: list[float]
) -> list[float]:
    """Return centred rewards, over the group's deviation if the norm says so."""
    return standardised(attempts, rewards) if values["norm"] == "std" else centred


# Weights


def set_weights(values: Values, attempts: list[Attempt]) -> None:
    """Give every token its share of the loss."""
    all_tokens = sum(len(each.tokens) for each in attempts)
    prompts = len({each.group for each in attempts})
    for attempt in attempts:
        own = len(attempt.tokens)
        of_prompt = sum(len(each.tokens) for each in members(attempts, attempt.group))
        for token in attempt.tokens:
            token.weight = {
                "token_mean": 1 / all_tokens,
                "sequence_mean": 1 / (len(attempts) * own),
                "prompt_mean": 1 / (prompts * of_prompt),
                "constant": 1 / (len(attempts) * values["constant_tokens"]),
            }[values["aggregation"]]


# Corrections


def usual(values: Values, key: str, value: float) -> float:
    """Return a limit of the correction, or its usual value."""
    found = values.get(f"correction_{key}")
    return value if found is None else found


def is_rejected(values: Values, attempt: Attempt) -> bool:
    """Say whether a member leaves the batch's baselines."""
    logs = [token.proximal - token.behaviour for token in attempt.tokens]
    if values.get("correction") == "sequence_rejection":
        return not usual(values, "low", 0.0) <= exp(sum(logs)) <= usual(values, "high", 2.0)
    if values.get("correction") == "geometric_rejection":
        return not usual(values, "low", 0.99) <= exp(mean(logs)) <= usual(values, "high", 1.01)
    return False


def m2po_kept(tokens: list[Drawn], bound: float) -> dict[int, bool]:
    """Drop the token of largest squared drift until the mean of the rest is small."""
    left = sorted(tokens, key=lambda token: (token.proximal - token.behaviour) ** 2)
    while left and mean([(each.proximal - each.behaviour) ** 2 for each in left]) > bound:
        left.pop()
    kept = {id(token) for token in left}
    return {id(token): id(token) in kept for token in tokens}


def corrections(values: Values, attempt: Attempt, chosen: Mapping[int, bool]) -> list[float]:
    """Return what each token of an attempt weighs for its age."""
    raw = [exp(token.proximal - token.behaviour) for token in attempt.tokens]
    product = exp(sum(token.proximal - token.behaviour for token in attempt.tokens))
    cap, rule = values.get("correction_cap", inf), values["correction"]
    if rule == "none":
        return [1.0 for _ in raw]
    if rule in ("decoupled", "tis"):
        return [min(each, cap) for each in raw]
    if rule == "icepop":
        low, high = usual(values, "low", 0.5), usual(values, "high", 5.0)
        return [each if low <= each <= high else 0.0 for each in raw]
    if rule == "sequence_tis":
        return [min(product, cap) for _ in raw]
    if rule == "sequence_rejection":
        return [0.0 if is_rejected(values, attempt) else product for _ in raw]
    if rule == "geometric_rejection":
        return [0.0 if is_rejected(values, attempt) else 1.0 for _ in raw]
    if rule == "m2po":
        pairs = zip(raw, attempt.tokens, strict=True)
        return [each if chosen[id(token)] else 0.0 for each, token in pairs]
    gap = mean([token.behaviour - token.held for token in attempt.tokens])
    is_far = gap > usual(values, "bound", 0.5)
    pairs = zip(raw, attempt.tokens, strict=True)
    return [0.0 if is_far and token.advantage < 0 else min(each, cap) for each, token in pairs]


# Losses


def token_losses(
    kind: str, values: Values, attempts: list[Attempt], chosen: Mapping[int, bool]
) -> list[list[float]]:
    """Return the loss of every token, attempt by attempt."""
    result: list[list[float]] = []
    for attempt in attempts:
        if kind == "dppo":
            weights = [1.0 for _ in attempt.tokens]
            losses = [dppo(values, token) for token in attempt.tokens]
            shares = [exp(token.held - token.behaviour) for token in attempt.tokens]
        else:
            is_plain = values["correction"] == "none"
            base = [each.behaviour if is_plain else each.proximal for each in attempt.tokens]
            weights = corrections(values, attempt, chosen)
            losses = surrogates(kind, values, attempt, base, chosen)
            ratios = [exp(t.held - b) for t, b in zip(attempt.tokens, base, strict=True)]
            shares = [w * q for w, q in zip(weights, ratios, strict=True)]
        rows = zip(attempt.tokens, weights, losses, shares, strict=True)
        result.append([w * loss + other_terms(values, token, s) for token, w, loss, s in rows])
    return result


def other_terms(values: Values, token: Drawn, share: float) -> float:
    """Return the divergence and the entropy bonus; the divergence's slope is that of the KL."""
    gap = token.held - token.reference
    value = {"k1": gap, "k2": gap * gap / 2, "k3": exp(-gap) + gap - 1}[
        values.get("kl_estimator", "k3")
    ]
    divergence = share * (value + gap * (token.logp - token.held))
    bonus = values["entropy_coefficient"] * token.entropy
    return values["kl_coefficient"] * divergence - bonus


def surrogates(
    kind: str,
    values: Values,
    attempt: Attempt,
    base: list[float],
    chosen: Mapping[int, bool],
) -> list[float]:
    """Return an attempt's losses before the correction weighs them."""
    tokens = attempt.tokens
    pairs = list(zip(tokens, base, strict=True))
    deltas = [token.logp - b for token, b in pairs]
    held = [token.held - b for token, b in pairs]
    rows = list(zip(tokens, deltas, held, strict=True))
    match kind:
        case "gspo":
            sequence, stopped = exp(mean(deltas)), exp(mean(held))
            if values["level"] == "sequence":
                return [clipped(values, sequence, token.advantage) for token in tokens]
            return [clipped(values, stopped * exp(d - h), t.advantage) for t, d, h in rows]
        case "cispo":
            low, high = 1 - values["clip_low"], 1 + values["clip_high"]
            return [-min(max(exp(h), low), high) * t.advantage * t.logp for t, _, h in rows]
        case "sapo":
            return [sapo(values, exp(d), t.advantage) for t, d, _ in rows]
        case "gmpo":
            ratio = exp(mean([gmpo(values["clip_log"], d, t.advantage) for t, d, _ in rows]))
            return [-token.advantage * ratio for token in tokens]
        case "topr":
            taper = min(1.0, exp(sum(held)))
            return [-(1 if t.advantage > 0 else taper) * t.advantage * t.logp for t in tokens]
        case "opmd":
            if values["level"] == "sequence":
                square = sum(deltas) ** 2 / max(len(tokens), 1)
                return [-t.advantage * t.logp + values["tau"] / 2 * square for t in tokens]
            return [-t.advantage * t.logp + values["tau"] / 2 * d * d for t, d, _ in rows]
        case "opo":
            return [-exp(d) * t.advantage for t, d, _ in rows]
        case "clip_cov":
            own = [(t, h if chosen[id(t)] else d) for t, d, h in rows]
            return [clipped(values, exp(d), t.advantage) for t, d in own]
        case "kl_cov":
            c = values["penalty"]
            return [-exp(d) * t.advantage + c * abs(d) * chosen[id(t)] for t, d, _ in rows]
        case _:
            return [clipped(values, exp(d), t.advantage) for t, d, _ in rows]


def clipped(values: Values, ratio: float, advantage: float) -> float:
    """Return PPO's clipped loss; a bad token costs at most `dual_clip` times its advantage."""
    bound = min(max(ratio, 1 - values["clip_low"]), 1 + values["clip_high"])
    loss = -min(ratio * advantage, bound * advantage)
    most = values.get("dual_clip", 0.0)
    return min(loss, -most * advantage) if most and advantage < 0 else loss


def sapo(values: Values, ratio: float, advantage: float) -> float:
    """Return the softly gated loss."""
    tau = values["tau_positive"] if advantage > 0 else values["tau_negative"]
    return -advantage * 4 / tau / (1 + exp(-tau * (ratio - 1)))


def gmpo(bound: float, delta: float, advantage: float) -> float:
    """Return a log-ratio, clipped on the advantage's side."""
    if advantage > 0:
        return min(delta, bound)
    return max(delta, -bound) if advantage < 0 else delta


def dppo(values: Values, token: Drawn) -> float:
    """Return the loss on the ratio to the behaviour, masked by the change of probability."""
    before, now = exp(token.behaviour), exp(token.held)
    kl = before * log(before / now) + (1 - before) * log((1 - before) / (1 - now))
    gap = kl if values["divergence"] == "kl" else abs(now - before)
    is_away = (token.advantage > 0 and now > before) or (token.advantage < 0 and now < before)
    is_masked = is_away and gap > values["bound"]
    return 0.0 if is_masked else -token.advantage * exp(token.logp - token.behaviour)


def covariant(kind: str, values: Values, tokens: list[Drawn]) -> dict[int, bool]:
    """Choose tokens by covariance; Clip-Cov's draw is not repeated, so its share must be 1."""
    advantage = mean([token.advantage for token in tokens])
    logprob = mean([token.proximal for token in tokens])
    found = [(t.advantage - advantage) * (t.proximal - logprob) for t in tokens]
    if kind == "clip_cov":
        assert values["share"] == 1
        is_chosen = [values["cov_low"] < each < values["cov_high"] for each in found]
    else:
        count = max(int(values["share"] * len(tokens)), 1)
        order = sorted(range(len(tokens)), key=lambda index: -found[index])
        is_chosen = [index in order[:count] for index in range(len(tokens))]
    return {id(token): each for token, each in zip(tokens, is_chosen, strict=True)}
