"""Runs an emulated cluster until Ctrl-C: `python -m spotelastic.local.kubernetes`."""

import signal
import sys

from spotelastic.errors import SpotelasticError
from spotelastic.local.kubernetes import cluster
from spotelastic.signals import Signals


def main() -> int:
    """Start a cluster, say how it is used, and end it at a signal. Returns the exit code."""
    with Signals():
        try:
            with cluster.running() as found:
                print(f"export KUBECONFIG={found.kubeconfig}", flush=True)
                print(f"pods: {found.folder}/pods; Ctrl-C ends the cluster", flush=True)
                signal.pause()
        except SpotelasticError as error:
            print(f"spotelastic: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
