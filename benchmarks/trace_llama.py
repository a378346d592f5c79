"""Time and peak memory of tracing a Llama-3.1-8B training step at one length: at most 20 s and 2 GB."""

import resource
import time
from typing import Final

from joulecast.workload.models import resolve_model
from joulecast.workload.models.builders import build_model
from joulecast.workload.trace import trace_step

SEQ_LEN: Final = 2048
MOST_TIME_S: Final = 20.0
MOST_MEMORY_BYTES: Final = 2e9
KIB: Final = 1024  # ru_maxrss is in KiB on Linux


def main() -> None:
    """Measure, print and judge."""
    start_s = time.perf_counter()
    built = build_model(resolve_model("llama-3.1-8b"), train=True, seq_len=SEQ_LEN)
    traced = trace_step(
        built.module,
        built.make_inputs,
        variant="amp-bf16",
        loss=built.loss,
        optimizers=("adamw",),
        seq_lens=(SEQ_LEN,),
    )
    time_s = time.perf_counter() - start_s
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    print(f"Llama-3.1-8B, {traced.parameters.n_parameters / 1e9:.2f} G parameters")
    print(f"  time    {time_s:.1f} s (target {MOST_TIME_S:.0f} s)")
    print(f"  memory  {memory_bytes / 1e9:.2f} GB (target {MOST_MEMORY_BYTES / 1e9:.0f} GB)")
    if time_s > MOST_TIME_S or memory_bytes > MOST_MEMORY_BYTES:
        raise SystemExit("over the target")


if __name__ == "__main__":
    main()
