"""Wall time and memory of `joulecast predict` of a packaged model, as a whole process.

Asserts the targets: at most 0.5 s and 150 MB, and no torch. Prints the best of some processes, because a
busy machine only adds time.
"""

import resource
import subprocess
import sys
import time
from typing import Final

N_PROCESSES: Final = 7
MOST_TIME_S: Final = 0.5
MOST_MEMORY_BYTES: Final = 150e6
KIB: Final = 1024  # ru_maxrss is in KiB on Linux

PROGRAM: Final = """
import resource, sys
from joulecast.cli.main import run
code = run(sys.argv[1:])
heavy = [name for name in ("torch", "scipy", "pandas") if name in sys.modules]
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *heavy, file=sys.stderr)
"""
ARGUMENTS: Final = ("predict", "bert-base", "--gpu", "a100-sxm4-40gb")


def one_process() -> tuple[float, float, list[str]]:
    """Return wall time, peak memory and the heavy packages of one process. [s], [bytes]"""
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *ARGUMENTS], capture_output=True, text=True, check=True
    )
    time_s = time.perf_counter() - start_s
    code, memory_kib, *heavy = done.stderr.split()
    if code != "0":
        raise SystemExit(f"predict failed: {done.stderr}")
    return time_s, float(memory_kib) * KIB, heavy


def main() -> None:
    """Measure, print and judge."""
    found = [one_process() for _ in range(N_PROCESSES)]
    time_s = min(time_s for time_s, _, _ in found)
    memory_bytes = max(memory_bytes for _, memory_bytes, _ in found)
    heavy = found[0][2]
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime / N_PROCESSES
    print(f"joulecast {' '.join(ARGUMENTS)}")
    print(f"  wall time  {time_s:.3f} s best of {N_PROCESSES} (target {MOST_TIME_S} s); user {cpu_s:.3f} s")
    print(f"  memory     {memory_bytes / 1e6:.0f} MB (target {MOST_MEMORY_BYTES / 1e6:.0f} MB)")
    print(f"  heavy      {', '.join(heavy) or 'none'}")
    if time_s > MOST_TIME_S or memory_bytes > MOST_MEMORY_BYTES or heavy:
        raise SystemExit("over the target")


if __name__ == "__main__":
    main()
