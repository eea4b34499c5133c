"""Runs an emulated cluster until Ctrl-C: `make kube`."""

import argparse
import signal
import sys
from collections.abc import Sequence

from support.emulated_kubernetes import cluster

from spotelastic.errors import SpotelasticError
from spotelastic.signals import Signals

PROGRAM = "make kube"
ABOUT = """Run an emulated Kubernetes cluster on this machine, for kubectl and other clients, until
Ctrl-C. It prints the kubeconfig by which they use it. Pods are processes of this machine; the
cluster ends with this command, and everything in it."""


def main(args: Sequence[str] | None = None) -> int:
    """Start a cluster, say how it is used, and end it at a signal. Returns the exit code.

    `args` are those of the command line; None: the process's own. There is only --help.
    """
    argparse.ArgumentParser(PROGRAM, description=ABOUT, allow_abbrev=False).parse_args(args)
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
