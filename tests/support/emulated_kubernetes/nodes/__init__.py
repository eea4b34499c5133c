"""The kubelet: pods as groups of processes, with volumes, names and an end."""
