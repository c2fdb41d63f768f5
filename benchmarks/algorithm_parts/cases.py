"""Which algorithms, with which keys, are compared with their formulas."""

from collections.abc import Mapping
from typing import Any

KL = {"kl_coefficient": 0.3, "entropy_coefficient": 0.05}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_kl": ("grpo", {**KL, "kl_estimator": "k2"}),
    "grpo_dual_clip": ("grpo", {"dual_clip": 1.2, "clip_low": 0.1}),
    "dr_grpo": ("dr_grpo", {"aggregation": "constant", "constant_tokens": 8}),
    "rloo": ("rloo", {"aggregation": "sequence_mean"}),
    "reinforce": ("reinforce", {"correction": "none"}),
    "gspo": ("gspo", {}),
    "gspo_wide": ("gspo", {"clip_low": 0.05, "clip_high": 0.08, **KL}),
    "gspo_token": ("gspo", {"level": "token", "clip_low": 0.05, "clip_high": 0.1}),
    "cispo": ("cispo", {"clip_low": 0.5, "clip_high": 0.4, **KL}),
    "cispo_usual": ("cispo", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus", {}),
    "reinforce_plus_plus_kl": ("reinforce_plus_plus", {"reward_kl_coefficient": 0.2}),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", {}),
    "dapo": ("dapo", {}),
    "dapo_overlong": ("dapo", {"overlong_limit": 5, "overlong_buffer": 3}),
    "lite_ppo": ("lite_ppo", {}),
    "raft_plus_plus": ("raft_plus_plus", {}),
    "opo": ("opo", {**KL, "kl_estimator": "k1"}),
    "topr": ("topr", {"correction": "none"}),
    "topr_reinforce": ("topr", {"advantage": "reinforce"}),
    "sapo": ("sapo", {}),
    "gmpo": ("gmpo", {"clip_log": 0.2}),
    "dppo_tv": ("dppo", {"bound": 0.05, **KL}),
    "dppo_kl": ("dppo", {"divergence": "kl", "bound": 0.02, "advantage": "rloo"}),
    "clip_cov": ("clip_cov", {"share": 1.0, "cov_low": 0.2}),
    "kl_cov": ("kl_cov", {"share": 0.25}),
    "opmd": ("opmd", {}),
    "opmd_sequence": (
        "opmd",
        {"level": "sequence", "aggregation": "constant", "constant_tokens": 1},
    ),
    "max_rl": ("max_rl", {}),
    "pass_at_k": ("pass_at_k", {"k": 2}),
    "turn_returns": ("turn_returns", {"discount": 0.9}),
    "segment_returns": ("turn_returns", {"discount": 0.9, "norm": "none"}),
    "gigpo": ("gigpo", {"discount": 0.9}),
    "gigpo_std": ("gigpo", {"norm": "std", "state_weight": 0.5}),
    **{
        f"aggregation_{kind}": ("gspo", {"aggregation": kind, "constant_tokens": 8})
        for kind in ("token_mean", "sequence_mean", "prompt_mean", "constant")
    },
    "grpo_rejection": (
        "grpo",
        {
            "correction": "geometric_rejection",
            "correction_low": 0.85,
            "correction_high": 1.15,
            **KL,
        },
    ),
    **{
        f"correction_{rule}": ("cispo", {"correction": rule, **KL, **limits})
        for rule, limits in {
            "none": {},
            "decoupled": {"correction_cap": 1.1},
            "tis": {"correction_cap": 1.1},
            "icepop": {"correction_low": 0.8, "correction_high": 1.2},
            "sequence_tis": {"correction_cap": 1.2},
            "sequence_rejection": {"correction_low": 0.5, "correction_high": 1.5},
            "geometric_rejection": {"correction_low": 0.85, "correction_high": 1.15},
            "m2po": {"correction_bound": 0.02},
            "opsm": {"correction_bound": 0.1, "correction_cap": 1.1},
        }.items()
    },
}
