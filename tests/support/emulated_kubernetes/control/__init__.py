"""What a cluster does by itself: jobs and deployments make pods, pods find a node (pure)."""
