"""How much longer a step takes while it is measured: pairs of runs, with and without, interleaved.

A block of steps runs with the sensors read and the record kept, and one without, in an order that changes;
the figure is the median over pairs of the ratio of their times, with the interval that its spread gives it.
Run on an idle machine: ``python benchmarks/measure_overhead.py [--pairs 40] [--seconds 1]``.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

import joulecast
from joulecast.measure.store import Store

#: What measuring may add to a step.
_ALLOWED_FRAC = 0.01


def _train_step() -> "tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device)
    return net, torch.optim.AdamW(net.parameters()), torch.randn(64, 512, device=device)


def _block(n_steps: int, store: Store | None) -> float:
    """Return the seconds of so many steps, metered where there is a store."""
    net, optimizer, x = _train_step()
    with ExitStack() as stack:
        meter = None if store is None else stack.enter_context(joulecast.Meter(store=store, n_warmup=0))
        begin_s = 0.0
        for i in range(n_steps + 3):
            if i == 3:  # noqa: PLR2004  (the first steps make the optimizer's state)
                begin_s = time.perf_counter()
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            if meter is not None:
                meter.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - begin_s


def main() -> None:
    """Print the overhead and fail where it is more than allowed beyond its interval."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a block")
    options = parser.parse_args()
    n_steps = max(round(options.seconds * 50 / _block(50, None)), 10)
    ratios = []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "runs.db") as store:
        for i in range(options.pairs):
            order = (None, store) if i % 2 else (store, None)
            times_s = {which is not None: _block(n_steps, which) for which in order}
            ratios.append(times_s[True] / times_s[False] - 1)
    median = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - median) for ratio in ratios)
    # standard error of a median: 1.2533 sigma / sqrt(n), sigma = 1.4826 median absolute deviations
    error = 1.2533 * 1.4826 * deviation / len(ratios) ** 0.5
    print(f"measuring adds {median:+.2%} +- {error:.2%} to a step ({options.pairs} pairs of {n_steps} steps)")
    if median - 2 * error > _ALLOWED_FRAC:
        raise SystemExit(f"more than {_ALLOWED_FRAC:.0%}")


if __name__ == "__main__":
    main()
