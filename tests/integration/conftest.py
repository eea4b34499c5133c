from support.etcd import etcd_member, etcd_store, prefix
