"""The checkpoint service: a torch-free daemon per node, and what speaks to it.

state -> slot (shared memory, sealed) -> shards -> object store -> commit record
"""
