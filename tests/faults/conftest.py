from support.etcd import etcd_cluster, no_leftover_threads, prefix
from support.s3 import bucket, s3_endpoint

__all__ = ["bucket", "etcd_cluster", "no_leftover_threads", "prefix", "s3_endpoint"]
