"""Names the custom resource `ElasticJob`, which people apply with kubectl (pure).

Its group is in a domain that ICANN keeps for private use: nobody can own it, so the name claims
nothing that is not ours, and collides with nothing that somebody else owns.
"""

GROUP = "spotelastic.internal"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND, PLURAL = "ElasticJob", "elasticjobs"
FOLDER = "spotelastic/folder"
"""Annotation with the folder that `up` has shipped."""
FINALIZER = f"{GROUP}/cluster"
"""Holds a deleted ElasticJob until nothing is left of its cluster."""
MARK = "elastic-job.json"
"""The object of a cluster that says which ElasticJob it was made for. Of all objects it goes last.
"""
QUEUED, SUSPENDED = "queued", "suspended"
"""States of a job that Kueue has not admitted yet, and of one whose pods it has taken away."""
QUEUE, PRIORITY_CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
"""Labels of an ElasticJob that Kueue admits, as all of its jobs have them."""
