from support.saving.s3_servers import bucket, s3_endpoint
from support.store.etcd_members import etcd_cluster, no_leftover_threads, prefix

__all__ = ["bucket", "etcd_cluster", "no_leftover_threads", "prefix", "s3_endpoint"]
