"""Rehearses a script on this machine: interrupts it in all the usual ways, and compares the steps.

`rehearsal_plan.py` says what is tried and `compare.py` what came of it: both are pure. `conduct.py`
does it, by nodes (`nodes.py`) that run `spotelastic run`, each act in a copy of the folder
(`copies.py`).
What the steps leave is recorded by the Checkpointer (`spotelastic/training/rehearsal/`).
"""
