"""The networks: what predicts a chunk of actions from noise, two times and a condition.

Every objective uses the same ones. A network takes z [B, H, A], the times r and t [B] and a
condition [B, C], and returns its prediction [B, H, A] and its middle features [B, F], which the
dispersive loss spreads. Objectives with a single time pass it as both. Times are embedded as they
come: MeanFlow's lie in [0, 1] and are not scaled up, because the difference quotient of `dde`
has an error that grows with the square of the embedding's highest frequency.

`make_networks` picks an encoder and a network by `GenerativeOptions.network`.
"""

import math
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from rollart_robot.options import GenerativeOptions

TIME_FEATURES = 64
FRAME_FEATURES = 64
"""Features of one observation's point cloud, and as many of its state."""
_SLOWEST = 1e4
_KERNEL = 3
_GROUPS = 8


class ChunkNetwork(Protocol):
    """Predicts a chunk of actions, or the velocity towards one.

    Example:
        >>> prediction, features = network(z, r, t, condition)
        >>> prediction.shape, features.shape
        (torch.Size([128, 4, 4]), torch.Size([128, 256]))

    """

    def __call__(self, z: Tensor, r: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and the middle features."""
        ...


class TimeEmbedding(nn.Module):
    """Sines and cosines of r and t at frequencies from 1 down to 1e-4, as one vector."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        half = TIME_FEATURES // 2
        exponents = torch.arange(half) / (half - 1)
        frequencies = torch.exp(-math.log(_SLOWEST) * exponents)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, r: Tensor, t: Tensor) -> Tensor:
        """Return [B, 2 * TIME_FEATURES]."""
        angles = torch.stack((r, t), dim=1).unsqueeze(2) * self.frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=2).flatten(1)


class ResidualBlock(nn.Module):
    """Two linear layers around a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width] of [B, width]."""
        return x + self.second(silu(self.first(self.norm(x))))


class StateNetwork(nn.Module):
    """A residual MLP on [z, r, t, condition]; its features are the middle block's output."""

    def __init__(
        self, *, horizon: int, action_size: int, condition_size: int, width: int, blocks: int
    ) -> None:
        super().__init__()
        flat = horizon * action_size
        self.time = TimeEmbedding()
        self.enter = nn.Linear(flat + 2 * TIME_FEATURES + condition_size, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(blocks))
        self.leave = nn.Linear(width, flat)
        self._middle = (blocks - 1) // 2

    def forward(self, z: Tensor, r: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and the middle features."""
        x = self.enter(torch.cat((z.flatten(1), self.time(r, t), condition), dim=1))
        features = x
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == self._middle:
                features = x
        return self.leave(silu(x)).view_as(z), features


class FilmBlock(nn.Module):
    """Two convolutions over time; the condition scales and shifts each channel between them."""

    def __init__(self, entering: int, leaving: int, condition_size: int) -> None:
        super().__init__()
        self.first = _convolution(entering, leaving)
        self.second = _convolution(leaving, leaving)
        self.film = nn.Linear(condition_size, 2 * leaving)
        self.skip = nn.Conv1d(entering, leaving, 1) if entering != leaving else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return [B, leaving, L] of [B, entering, L]."""
        scale, shift = self.film(silu(condition)).unsqueeze(2).chunk(2, dim=1)
        return self.second(self.first(x) * (1 + scale) + shift) + self.skip(x)


class UNetwork(nn.Module):
    """A U-Net over the chunk's time axis; its features are the lowest level's output."""

    def __init__(self, *, action_size: int, condition_size: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        size = TIME_FEATURES + condition_size
        widths = list(pairwise(channels))
        self.time = nn.Sequential(
            nn.Linear(2 * TIME_FEATURES, 4 * TIME_FEATURES),
            nn.SiLU(),
            nn.Linear(4 * TIME_FEATURES, TIME_FEATURES),
        )
        self.embed = TimeEmbedding()
        self.enter = FilmBlock(action_size, channels[0], size)
        self.down = nn.ModuleList(nn.Conv1d(a, a, 3, stride=2, padding=1) for a, _ in widths)
        self.deeper = nn.ModuleList(FilmBlock(a, b, size) for a, b in widths)
        self.middle = FilmBlock(channels[-1], channels[-1], size)
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(b, a, 4, stride=2, padding=1) for a, b in reversed(widths)
        )
        self.higher = nn.ModuleList(FilmBlock(2 * a, a, size) for a, _ in reversed(widths))
        self.leave = nn.Conv1d(channels[0], action_size, 1)

    def forward(self, z: Tensor, r: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and the middle features."""
        context = torch.cat((self.time(self.embed(r, t)), condition), dim=1)
        x = self.enter(z.transpose(1, 2), context)
        skips = list[Tensor]()
        for down, block in zip(self.down, self.deeper, strict=True):
            skips.append(x)
            x = block(down(x), context)
        x = self.middle(x, context)
        features = x.flatten(1)
        for up, block in zip(self.up, self.higher, strict=True):
            x = block(torch.cat((up(x), skips.pop()), dim=1), context)
        return self.leave(x).transpose(1, 2), features


class StateEncoder(nn.Module):
    """The normalised states as they are, one after the other."""

    def __init__(self, *, observation_steps: int, state_size: int) -> None:
        super().__init__()
        self.size = observation_steps * state_size

    def forward(self, states: Tensor, points: Tensor | None) -> Tensor:
        """Return [B, To * S] of [B, To, S]; the points are not used."""
        return states.flatten(1)


class PointEncoder(nn.Module):
    """PointNet-lite on each observation's points, beside a small MLP on its state.

    The maximum over points makes the result independent of their order.
    """

    def __init__(self, *, observation_steps: int, state_size: int) -> None:
        super().__init__()
        self.size = observation_steps * 2 * FRAME_FEATURES
        self.points = nn.Sequential(*_layer(3, 64), *_layer(64, 128), *_layer(128, 256))
        self.project = nn.Sequential(nn.Linear(256, FRAME_FEATURES), nn.LayerNorm(FRAME_FEATURES))
        self.states = nn.Sequential(
            nn.Linear(state_size, FRAME_FEATURES),
            nn.SiLU(),
            nn.Linear(FRAME_FEATURES, FRAME_FEATURES),
        )

    def forward(self, states: Tensor, points: Tensor | None) -> Tensor:
        """Return [B, To * 128] of states [B, To, S] and points [B, To, N, 3]."""
        assert points is not None, "a policy with network 'points' needs points"
        cloud = self.project(self.points(points).amax(dim=2))
        return torch.cat((cloud, self.states(states)), dim=2).flatten(1)


def make_networks(
    options: GenerativeOptions, *, state_size: int, action_size: int
) -> tuple[StateEncoder | PointEncoder, StateNetwork | UNetwork]:
    """Return the encoder and the network that the options name."""
    steps = options.observation_steps
    match options.network:
        case "state":
            encoder = StateEncoder(observation_steps=steps, state_size=state_size)
            network = StateNetwork(
                horizon=options.horizon,
                action_size=action_size,
                condition_size=encoder.size,
                width=options.width,
                blocks=options.blocks,
            )
        case "points":
            encoder = PointEncoder(observation_steps=steps, state_size=state_size)
            network = UNetwork(
                action_size=action_size,
                condition_size=encoder.size,
                channels=options.channels,
            )
    return encoder, network


def _convolution(entering: int, leaving: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(entering, leaving, _KERNEL, padding=_KERNEL // 2),
        nn.GroupNorm(_GROUPS, leaving),
        nn.SiLU(),
    )


def _layer(entering: int, leaving: int) -> tuple[nn.Module, ...]:
    return nn.Linear(entering, leaving), nn.LayerNorm(leaving), nn.ReLU()
