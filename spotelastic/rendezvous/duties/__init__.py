"""What a node does in a round, whatever starts its workers (pure).

The agent, and the nodes of simulations and benchmarks all use this.
"""
