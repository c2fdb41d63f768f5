"""du/dt along the flow: how a mean velocity u(z, r, t) changes as t grows and z moves with v.

    du/dt = (∂u/∂z) v + ∂u/∂t

`jvp` is exact: forward-mode differentiation, without a graph. `dde` (the paper's Differential
Derivation Equation) is a central difference: two plain evaluations, so any network will do and
nothing but inference memory is needed. `double_backward` is exact too and is what the parent
code of this method does; it builds a graph through the derivative although only u is trained, and
is here to be measured against.

    python -m rollart_robot.derivatives

prints the error of `dde` against `jvp` for several widths of the difference.
"""

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rollart_robot.networks import ChunkNetwork, make_networks
from rollart_robot.options import GenerativeOptions

MeanVelocity = Callable[[Tensor, Tensor], Tensor]
"""u as a function of z [B, H, A] and t [B]; r and the condition are fixed."""

_STATE_SIZE, _ACTION_SIZE, _BATCH = 39, 4, 256
_WIDTHS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0001)


def forward_derivative(velocity: MeanVelocity, z: Tensor, t: Tensor, v: Tensor) -> Tensor:
    """Return du/dt by forward-mode differentiation."""
    with torch.no_grad():
        return torch.func.jvp(velocity, (z, t), (v, torch.ones_like(t)))[1]


def central_difference(
    velocity: MeanVelocity, z: Tensor, t: Tensor, v: Tensor, *, epsilon: float
) -> Tensor:
    """Return [u(z + εv, t + ε) - u(z - εv, t - ε)] / 2ε, in float32 or better.

    In half precision the difference of two close values would be rounding error.
    """
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        if z.dtype in (torch.float16, torch.bfloat16):
            z, t, v = z.float(), t.float(), v.float()
        step = epsilon * v
        later, earlier = velocity(z + step, t + epsilon), velocity(z - step, t - epsilon)
        return (later - earlier) / (2 * epsilon)


def double_backward(
    network: ChunkNetwork, z: Tensor, times: tuple[Tensor, Tensor], v: Tensor, condition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, the features and du/dt, all with a graph, as the parent code computes them."""
    r, t = times

    def evaluate(z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return network(z, r, t, condition)

    tangents = (v, torch.ones_like(t))
    (u, features), (derivative, _) = torch.autograd.functional.jvp(
        evaluate, (z, t), tangents, create_graph=True
    )
    return u, features, derivative


def difference_errors(
    velocity: MeanVelocity, z: Tensor, t: Tensor, v: Tensor, *, epsilons: Sequence[float]
) -> dict[float, float]:
    """Return |dde - jvp| / |jvp| over a batch, by epsilon.

    Example:
        >>> difference_errors(velocity, z, t, v, epsilons=(0.01, 0.005))
        {0.01: 4.4e-05, 0.005: 8.4e-05}

    """
    exact = forward_derivative(velocity, z, t, v)
    errors = dict[float, float]()
    for epsilon in epsilons:
        found = central_difference(velocity, z, t, v, epsilon=epsilon)
        errors[epsilon] = float((found - exact).norm() / exact.norm())
    return errors


def initial_errors(options: GenerativeOptions, *, epsilons: Sequence[float]) -> dict[float, float]:
    """Return the errors for the options' network as it starts, in float32, on normal inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder, network = make_networks(options, state_size=_STATE_SIZE, action_size=_ACTION_SIZE)
        actions, noise = torch.randn(2, _BATCH, options.horizon, _ACTION_SIZE)
        r, t = torch.rand(2, _BATCH).sort(dim=0).values
        condition = torch.randn(_BATCH, encoder.size)
    share = t[:, None, None]
    z, v = (1 - share) * actions + share * noise, noise - actions

    def velocity(z: Tensor, t: Tensor) -> Tensor:
        return network(z, r, t, condition)[0]

    return difference_errors(velocity, z, t, v, epsilons=epsilons)


def error_table() -> str:
    """Return the errors of the state network as it starts, as a table in Markdown."""
    errors = initial_errors(GenerativeOptions(), epsilons=_WIDTHS)
    rows = [f"| {width:g} | {error:.1e} |" for width, error in errors.items()]
    return "\n".join(("| epsilon | relative error |", "|---|---|", *rows, ""))


if __name__ == "__main__":
    sys.stdout.write(error_table())
