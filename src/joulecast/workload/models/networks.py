"""Networks that no library provides, and replacements for parts that cannot be traced. Needs torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def _conv_norm(n_in: int, n_out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution with bias, as the collection has them, and its batch norm."""
    conv = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, groups=groups)
    return [conv, nn.BatchNorm2d(n_out)]


class ShuffleUnit(nn.Module):
    """Unit of ShuffleNet V2: half of the channels pass, the other half is convolved, then a shuffle."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.splits = stride == 1 and n_in == n_out
        width = n_in // 2 if self.splits else n_in
        half = n_out // 2
        self.residual = nn.Sequential(
            *_conv_norm(width, width, 1),
            nn.ReLU(inplace=True),
            *_conv_norm(width, width, 3, stride=stride, groups=width),
            *_conv_norm(width, half, 1),
            nn.ReLU(inplace=True),
        )
        self.shortcut = nn.Sequential()
        if not self.splits:
            self.shortcut = nn.Sequential(
                *_conv_norm(n_in, n_in, 3, stride=stride, groups=n_in),
                *_conv_norm(n_in, half, 1),
                nn.ReLU(inplace=True),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the unit's output, [image, channel, row, column]."""
        shortcut, residual = x.chunk(2, dim=1) if self.splits else (x, x)
        x = torch.cat([self.shortcut(shortcut), self.residual(residual)], dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ShuffleNetV2Cifar(nn.Module):
    """ShuffleNet V2 for small images: a 3x3 stem of stride 1 and no pooling before the stages.

    Parameters
    ----------
    stem : int
        Channels of the stem.
    stages : sequence of (int, int)
        Channels and units of each stage; its first unit has stride 2.
    head : int
        Channels of the last 1x1 convolution.
    classes : int
        Outputs.
    """

    def __init__(self, stem: int, stages: Sequence[Sequence[int]], head: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv_norm(3, stem, 3))
        units: list[nn.Module] = []
        n_in = stem
        for n_out, n_units in stages:
            units.append(ShuffleUnit(n_in, n_out, 2))
            units += [ShuffleUnit(n_out, n_out, 1) for _ in range(n_units - 1)]
            n_in = n_out
        self.stages = nn.Sequential(*units)
        self.head = nn.Sequential(*_conv_norm(n_in, head, 1), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(head, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores, [image, class]."""
        x = self.head(self.stages(self.stem(x)))
        scores: Tensor = self.classifier(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, dropout: float) -> Tensor:
    """Return attention as separate products and softmax, [batch, head, row, width]."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if causal:
        n = query.shape[-2]
        allowed = torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = functional.dropout(scores.softmax(dim=-1), dropout, training=dropout > 0)
    return weights @ value


class EagerMultiheadAttention(nn.MultiheadAttention):
    """Self-attention of `torch.nn` with its products and softmax as separate kernels, as before torch 2.0."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Any:  # type: ignore[override]
        """Return the output [batch, row, width] and None for the weights; query = key = value."""
        n, rows, width = query.shape
        packed = functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        # [query|key|value, batch, head, row, width]
        heads = packed.view(n, rows, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        out = _plain_attention(*heads.unbind(0), causal=False, dropout=dropout)
        return self.out_proj(out.transpose(1, 2).reshape(n, rows, width)), None


def use_eager_attention(module: nn.Module) -> None:
    """Replace, in place, the fused attention of every `torch.nn.MultiheadAttention` of a module."""
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.__class__ = EagerMultiheadAttention


class MptBlock(nn.Module):
    """Block of an MPT decoder: norm, causal attention, norm, feed-forward; GELU, no biases."""

    def __init__(self, hidden: int, heads: int, ffn: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm_1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm_2 = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, [batch, token, hidden]."""
        n, tokens, hidden = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        query, key, value = (part.view(n, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        if self.fused:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            attended = _plain_attention(query, key, value, causal=True, dropout=0.0)
        x = x + self.out(attended.transpose(1, 2).reshape(n, tokens, hidden))
        y: Tensor = self.down(functional.gelu(self.up(self.norm_2(x))))
        return x + y


class Mpt(nn.Module):
    """MPT decoder with learned positions and a tied head; returns ``{"loss": ...}`` or ``{"logits": ...}``.

    Parameters
    ----------
    layers, hidden, heads, ffn, vocab, positions : int
        Sizes.
    fused : bool
        Flash attention through `scaled_dot_product_attention`, or products and softmax apart.
    """

    def __init__(
        self, *, layers: int, hidden: int, heads: int, ffn: int, vocab: int, positions: int, fused: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList([MptBlock(hidden, heads, ffn, fused=fused) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the next-token loss if labels are given, else the scores [batch, token, vocab]."""
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        if labels is None:
            return {"logits": logits}
        targets = labels.roll(-1, dims=1)
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}


class BalancedRouter(nn.Module):
    """A Switch router that assigns tokens evenly instead of by value.

    Which expert a token goes to depends on trained weights. The cost of a step depends on how many each
    expert gets; even use is what the router's training loss aims at. The router's own kernels run.
    """

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.classifier: nn.Linear = router.classifier
        self.num_experts: int = router.num_experts
        self.expert_capacity: int = router.expert_capacity

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the one-hot assignment, the winning probability and the scores, by token of x."""
        logits = functional.linear(x.float(), self.classifier.weight.float())
        probability = logits.softmax(dim=-1).to(x.dtype)
        chosen = functional.one_hot(probability.argmax(dim=-1), num_classes=self.num_experts)
        chosen = chosen * (chosen.cumsum(dim=-2) <= self.expert_capacity)
        return chosen, probability.amax(dim=-1, keepdim=True), logits


class BalancedExperts(nn.Module):
    """Experts of a Switch layer, each with the same number of tokens: its share, at most its capacity."""

    def __init__(self, experts: nn.ModuleDict, expert_capacity: int) -> None:
        super().__init__()
        self.experts = experts
        self.expert_capacity = expert_capacity

    def tokens_per_expert(self, n_sequences: int, seq_len: int) -> int:
        """Return how many tokens each expert gets from a batch."""
        return n_sequences * min(self.expert_capacity, max(1, seq_len // len(self.experts)))

    def forward(self, x: Tensor, weights: Tensor, n_sequences: int) -> Tensor:
        """Return the mixture for tokens x [token, width] with routing weights [token, 1]."""
        out = torch.zeros_like(x)
        n = self.tokens_per_expert(n_sequences, x.shape[0] // n_sequences)
        for i, expert in enumerate(self.experts.values()):
            rows = torch.arange(i * n, (i + 1) * n, device=x.device) % x.shape[0]
            out.index_add_(0, rows, (expert(x[rows]) * weights[rows]).to(x.dtype))
        return out


class BalancedSparseMLP(nn.Module):
    """Mixture-of-experts layer of a Switch Transformer without data-dependent shapes."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.router = BalancedRouter(layer.router)
        self.experts = BalancedExperts(
            nn.ModuleDict(dict(layer.experts.items())), layer.router.expert_capacity
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, [batch, token, width]."""
        n_sequences, _, width = x.shape
        _, weights, _ = self.router(x)
        mixed: Tensor = self.experts(x.reshape(-1, width), weights.reshape(-1, 1), n_sequences)
        return mixed.view_as(x)


def balance_experts(module: nn.Module, sparse_layer: type[nn.Module]) -> None:
    """Replace, in place, every layer of a mixture-of-experts class by its balanced twin."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, sparse_layer):
                setattr(parent, name, BalancedSparseMLP(child))
