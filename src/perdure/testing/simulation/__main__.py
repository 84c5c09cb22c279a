"""`python -m perdure.testing.simulation SEED...`: play seeds, and show what came of them."""

from __future__ import annotations

import argparse
import sys

from perdure.testing.simulation.report import simulate


def main() -> int:
    """Play the seeds of the command line; 1 if one broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--shared", action="store_true", help="several workers on one store, not one that owns it")
    parser.add_argument("--limited", action="store_true", help="with limits and mutexes")
    arguments = parser.parse_args()
    failed = False
    for seed in arguments.seeds:
        report = simulate(seed, shared=arguments.shared, limited=arguments.limited)
        if arguments.trace:
            print("\n".join(report.trace))
        for violation in report.violations:
            print(f"  {violation}")
        failed = failed or bool(report.violations)
        verdict = f"{len(report.violations)} violations" if report.violations else "ok"
        print(f"seed {seed}: {verdict}, {report.runs} runs, {report.facts} facts, trace {report.digest}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
