from support.etcd import etcd_cluster, no_leftover_threads, prefix

__all__ = ["etcd_cluster", "no_leftover_threads", "prefix"]
