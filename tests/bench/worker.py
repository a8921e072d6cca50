"""One process of a case: worker PLAN ROLE [URL ...]; the roles of kvcs/bench/worker.py and those of the suite and of long runs."""

from __future__ import annotations

import cProfile
import sys

from kvcs import loops
from kvcs.bench.plan import Plan
from kvcs.bench.worker import ROLES
from tests.bench import relayed, roles, stock
from tests.soak.roles import publish_long, subscribe_again

SUITE_ROLES = ROLES | {
    "send-stock": stock.send_stock,
    "take-stock": stock.take_stock,
    "shape": roles.shape,
    "publish-growing": roles.publish_growing,
    "first-layer": roles.first_layer,
    "pipeline": roles.pipeline,
    "subscribe-many": roles.subscribe_many,
    "publish-ticking": roles.publish_ticking,
    "stop-reading": roles.stop_reading,
    "publish-long": publish_long,
    "subscribe-again": subscribe_again,
    "offer": relayed.offer,
    "take": relayed.take,
    "take-beside-stopped": relayed.take_beside_stopped,
    "stop-at-first": relayed.stop_at_first,
}


def main() -> None:
    """Runs the role to its end, under a profiler where the plan names a file for what it finds."""
    plan, role, *arguments = Plan.load(sys.argv[1]), *sys.argv[2:]
    profile = plan.options.get("profile")
    if profile is None:
        loops.run(SUITE_ROLES[role](plan, *arguments), plan.loop)
        return
    profiler = cProfile.Profile()
    profiler.runcall(loops.run, SUITE_ROLES[role](plan, *arguments), plan.loop)
    profiler.dump_stats(f"{profile}-{role}")


if __name__ == "__main__":
    main()
