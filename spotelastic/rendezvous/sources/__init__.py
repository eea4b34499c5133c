"""Where a round goes on from."""
