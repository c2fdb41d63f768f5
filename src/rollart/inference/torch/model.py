"""The model: the forward pass of Llama, Qwen2 and Qwen3 over a packed batch and a row cache.

Plain functions of tensors, because for small models on a CPU Python and dispatch cost as much as
arithmetic. In each layer the batch's keys and values are written to the cache first, then prefixes
shared within the step are copied, then tokens attend; so every token sees complete rows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from rollart.inference.torch.batch import ForwardBatch, RowBlock
from rollart.inference.torch.cache import KVCache
from rollart.inference.torch.parameters import Layer, Parameters, read_parameters
from rollart.models.architecture import Architecture

_LAYER_PRODUCTS = 1 << 26
"""Multiplications in a layer's linear maps (about 2 ms) above which several threads are used."""
_ATTENDED_NUMBERS = 1 << 19
"""Key elements read by attention (about 0.5 ms) above which several threads are used."""
_TOKENS_A_READ = 8
"""Tokens of a row whose attention takes as long as reading its keys and values once."""


class Threads:
    """Sets how many threads the next operations use: short ones are faster on one."""

    def __init__(self, count: int) -> None:
        self._count = count

    def share_all(self) -> None:
        """Use all threads."""
        self._use(shared=True)

    def share_linear(self, *, tokens: int, layer_size: int) -> None:
        """Choose for the linear maps of a layer with `layer_size` weights."""
        self._use(shared=tokens * layer_size >= _LAYER_PRODUCTS)

    def share_attention(self, *, rows: int, row_size: int, tokens: int) -> None:
        """Choose for attention over `rows` rows of `row_size` key elements, `tokens` in each."""
        reads = rows * row_size * (1 + tokens // _TOKENS_A_READ)
        self._use(shared=reads >= _ATTENDED_NUMBERS)

    def _use(self, *, shared: bool) -> None:
        if self._count > 1:
            torch.set_num_threads(self._count if shared else 1)


class Model:
    """A decoder-only transformer that computes a batch's logits and fills the cache."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        weights: Mapping[str, Any],
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        threads: int,
    ) -> None:
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self._threads = Threads(threads if device.type == "cpu" else 1)
        self._parameters = self._read(weights)
        angles = torch.outer(
            torch.arange(max_length).float(), architecture.inverse_frequencies()
        ).unsqueeze(1)
        scales = torch.full_like(angles, architecture.rotary_scale)
        self._rotations = torch.polar(scales, angles).to(device)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Replace the weights; if the new ones are refused, keep the old ones."""
        self._parameters.copy_from(self._read(weights))

    def _read(self, weights: Mapping[str, Any]) -> Parameters:
        return read_parameters(
            weights, architecture=self._architecture, device=self._device, dtype=self._dtype
        )

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Return float32 logits of the batch's sampling tokens."""
        shape, parameters, threads = self._architecture, self._parameters, self._threads
        tokens, layer_size = len(batch.tokens), parameters.layer_size
        threads.share_linear(tokens=tokens, layer_size=layer_size)
        rotations = self._rotations.index_select(0, batch.positions)
        stream = functional.embedding(batch.tokens, parameters.embedding)
        for index, layer in enumerate(parameters.layers):
            normal = _normalise(stream, shape.norm_eps).mul_(layer.input_norm)
            queries, keys, values = self._project(normal, layer, rotations)
            cache.write(index, batch.slots, keys, values)
            for copy in batch.copies:
                cache.copy_layer(index, copy.source, copy.target, length=copy.length)
            runs = batch.windowed_runs if shape.windowed[index] else batch.runs
            attended = self._attend(queries, cache.keys[index], cache.values[index], runs)
            threads.share_linear(tokens=tokens, layer_size=layer_size)
            stream = _add_linear(stream, attended, layer.output, layer.output_bias)
            normal = _normalise(stream, shape.norm_eps).mul_(layer.mlp_norm)
            gates, ups = functional.linear(normal, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            inner = functional.silu(gates).mul_(ups)
            stream = _add_linear(stream, inner, layer.down, layer.down_bias)
        if batch.samples is not None:
            stream = stream.index_select(0, batch.samples)
        normal = _normalise(stream, shape.norm_eps).mul_(parameters.norm)
        logits = functional.linear(normal, parameters.head).float()
        threads.share_all()
        return logits

    def _project(
        self, normal: torch.Tensor, layer: Layer, rotations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rotated queries, rotated keys and values, each (tokens, heads, dimension)."""
        shape = self._architecture
        heads, turned = shape.query_heads, shape.query_heads + shape.key_heads
        fused = functional.linear(normal, layer.qkv, layer.qkv_bias)
        fused = fused.view(-1, turned + shape.key_heads, shape.head_dim)
        both = fused[:, :turned]
        if layer.head_norm is not None:
            both = _normalise(both, shape.norm_eps).mul_(layer.head_norm)
        numbers = torch.view_as_complex(both.float().unflatten(2, (-1, 2)))
        both = torch.view_as_real(numbers.mul_(rotations)).flatten(2).to(self._dtype)
        return both[:, :heads], both[:, heads:], fused[:, turned:]

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, runs: list[RowBlock]
    ) -> torch.Tensor:
        """Attend run by run to the rows of the cache."""
        head_size = keys.shape[1] * keys.shape[3]
        outputs: list[torch.Tensor] = []
        for run in runs:
            row_size = run.length * head_size
            self._threads.share_attention(rows=run.rows, row_size=row_size, tokens=run.count)
            piece = queries[run.first : run.stop]
            outputs.append(_attend(piece, _rows(keys, run), _rows(values, run), run))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _normalise(tensor: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide by the root mean square over the last axis."""
    norms = torch.linalg.vector_norm(tensor, dim=-1, keepdim=True, dtype=torch.float32)
    scales = norms.square_().mul_(1.0 / tensor.shape[-1]).add_(eps).rsqrt_()
    return tensor.mul(scales).to(tensor.dtype)


def _add_linear(
    stream: torch.Tensor, inner: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Add a projection of `inner` to the residual stream, in place."""
    stream.addmm_(inner, weight.t())
    return stream if bias is None else stream.add_(bias)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, run: RowBlock
) -> torch.Tensor:
    """Attend to the rows of one run."""
    _, heads, dim = queries.shape
    if run.count == 1:
        # The query heads of a key head are passed as if they were tokens: all attend to the same
        # positions, so grouped heads need neither copies nor a second pass.
        grouped = queries.unflatten(1, (keys.shape[1], -1))
        output = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=run.mask)
        return output.reshape(-1, heads * dim)
    output = functional.scaled_dot_product_attention(
        queries.view(run.rows, run.count, heads, dim).transpose(1, 2),
        keys,
        values,
        attn_mask=run.mask,
        is_causal=run.mask is None,
        enable_gqa=True,
    )
    return output.transpose(1, 2).reshape(-1, heads * dim)


def _rows(cache: torch.Tensor, run: RowBlock) -> torch.Tensor:
    """Return the part of a layer's keys or values a run attends to."""
    if run.gather is not None:
        return cache[:, :, : run.length].index_select(0, run.gather)
    return cache[run.row : run.row + run.rows, :, : run.length]
