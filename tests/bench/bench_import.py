"""What `import callboard` costs: python tests/bench/bench_import.py"""

import statistics
import subprocess
import sys

CODE = "import time; t = time.perf_counter(); import callboard; print(time.perf_counter() - t)"


def main() -> None:
    times = [
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True).stdout) for _ in range(7)
    ]
    print(f"import callboard: {statistics.median(times):.2f} s (median of {len(times)})")


if __name__ == "__main__":
    main()
