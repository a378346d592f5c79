"""Tracing one BERT-base training step against `FlopCounterMode` over the same fake step, in one run.

The target is a ratio of at most 2. A trace records the step at two batch sizes, so the counter's one step is
compared with two recorded ones.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from joulecast.workload.models import resolve_model
from joulecast.workload.models.builders import build_model
from joulecast.workload.trace import trace_step

BATCH_SIZE: Final = 8
SEQ_LEN: Final = 128
N_TIMES: Final = 5
MOST_RATIO: Final = 2.0


def best_time_s(work: Callable[[], Any]) -> float:
    """Return the shortest of some runs, after one to warm up. [s]"""
    work()
    times_s = []
    for _ in range(N_TIMES):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def on_fake_cpu(module: nn.Module) -> None:
    """Replace the parameters and buffers of a module on ``meta`` by fake ones on the CPU."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, torch.zeros(buffer.shape, dtype=buffer.dtype))


def counted_step(module: nn.Module, inputs: Any) -> None:
    """Run forward, loss and backward under torch's own counter."""
    with FlopCounterMode(display=False):
        module(**inputs).loss.backward()


def main() -> None:
    """Measure, print and judge."""
    built = build_model(resolve_model("bert-base"), train=True, seq_len=SEQ_LEN)
    with FakeTensorMode():
        on_fake_cpu(built.module)
        inputs = built.make_inputs(BATCH_SIZE, SEQ_LEN)
        counter_s = best_time_s(lambda: counted_step(built.module, inputs))
    built = build_model(resolve_model("bert-base"), train=True, seq_len=SEQ_LEN)
    trace_s = best_time_s(
        lambda: trace_step(
            built.module, built.make_inputs, loss=built.loss, optimizers=(), seq_lens=(SEQ_LEN,)
        )
    )
    ratio = trace_s / counter_s
    print(f"BERT-base training step, torch {torch.__version__}")
    print(f"  FlopCounterMode   {counter_s:.3f} s")
    print(f"  trace_step        {trace_s:.3f} s, {ratio:.2f} times as long (target {MOST_RATIO:.0f})")
    if ratio > MOST_RATIO:
        raise SystemExit(f"over the target of {MOST_RATIO}")


if __name__ == "__main__":
    main()
