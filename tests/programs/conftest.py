from support.store.etcd_members import etcd_member
