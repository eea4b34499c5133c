from support.etcd import etcd_member
