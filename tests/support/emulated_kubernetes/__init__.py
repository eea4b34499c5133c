"""An emulated Kubernetes cluster: an API server, and this machine's processes as its pods."""
