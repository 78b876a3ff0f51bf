"""What every test shares: the same generated inputs in every run, and one thread per process."""

from __future__ import annotations

import os
import signal

# A shell that starts the tests in the background lets them ignore Ctrl-C; the commands they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before numpy is loaded: several workers with several threads each would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,  # how long an example takes says nothing about whether it is right
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("house"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("CALCODE_HYPOTHESIS", "house"))
