"""Random pipelines for as long as you like: ``make fuzz SECONDS=3600 SEED=1 HOSTS=members,spark``.

Ends at the first difference, shrunk, with the seed that gives it again; else tells how many
programs were tried on which host.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fuzzing.programs import programs
from fuzzing.running import HOSTS, Hang

PROGRAMS_PER_ROUND = {"one": 200, "several": 10}


def fuzz_round(number, host, submit, counts):
    """As many programs as a round has; those of a host that is slow to start are run together."""
    is_slow = HOSTS[host].is_slow
    single = programs(streams=HOSTS[host].streams)
    together = st.lists(programs(fails=False, streams=HOSTS[host].streams), min_size=5, max_size=10)

    @seed(number)
    @settings(
        derandomize=False,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        max_examples=PROGRAMS_PER_ROUND["several" if is_slow else "one"],
        suppress_health_check=list(HealthCheck),
    )
    @given(several=(together | st.tuples(single)) if is_slow else st.tuples(single))
    def run(several):
        if len(several) > 1:
            several = [each for each in several if not each.preserves_order]
        if not several:
            return
        counts[host] += len(several)
        HOSTS[host].check(several, submit)

    run()


def main():
    logging.disable()
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--hosts", default=",".join(HOSTS))
    arguments = parser.parse_args()
    seconds, start, hosts = arguments.seconds, arguments.seed, arguments.hosts.split(",")
    print(f"SEED={start} SECONDS={seconds:g} HOSTS={','.join(hosts)}", flush=True)
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    number = start
    with ExitStack() as stack:
        engines = {host: stack.enter_context(HOSTS[host].open()) for host in hosts}
        while time.monotonic() < deadline:
            for host, submit in engines.items():
                try:
                    fuzz_round(number, host, submit, counts)
                except (Exception, Hang):
                    traceback.print_exc()
                    print(f"a difference: SEED={number} HOSTS={host}, after {dict(counts)}")
                    return 1
            number += 1
            print(f"{dict(counts)}, next seed {number}", flush=True)
    print(f"no difference: seeds {start} to {number - 1}, programs {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
