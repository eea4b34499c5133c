from support.etcd import etcd_member, etcd_store, no_leftover_threads, prefix

__all__ = ["etcd_member", "etcd_store", "no_leftover_threads", "prefix"]
