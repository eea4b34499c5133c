"""The kinds of objects that the emulated API server has, and their paths."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of objects, and what can be done with one."""

    group: str
    """"" for the core group."""
    version: str
    plural: str
    name: str
    namespaced: bool = True
    has_status: bool = False
    """Whether its status is written by a path of its own, and ignored elsewhere."""
    scales: bool = False
    """Whether it has a `scale` path."""
    custom: bool = False
    """Whether a CustomResourceDefinition has added it."""
    short: tuple[str, ...] = ()
    """Short names that kubectl takes for it."""

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """The path of its group."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def called(self, name: str) -> str:
        """Return how a message names an object of this kind."""
        group = f".{self.group}" if self.group else ""
        return f'{self.plural}{group} "{name}"'


NAMESPACES = ObjectKind("", "v1", "namespaces", "Namespace", namespaced=False, has_status=True)
NODES = ObjectKind("", "v1", "nodes", "Node", namespaced=False, has_status=True)
PODS = ObjectKind("", "v1", "pods", "Pod", has_status=True)
SERVICES = ObjectKind("", "v1", "services", "Service", has_status=True)
SECRETS = ObjectKind("", "v1", "secrets", "Secret")
CONFIG_MAPS = ObjectKind("", "v1", "configmaps", "ConfigMap")
EVENTS = ObjectKind("", "v1", "events", "Event")
CLAIMS = ObjectKind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", has_status=True)
ACCOUNTS = ObjectKind("", "v1", "serviceaccounts", "ServiceAccount")
QUOTAS = ObjectKind("", "v1", "resourcequotas", "ResourceQuota", has_status=True)
LIMITS = ObjectKind("", "v1", "limitranges", "LimitRange")
JOBS = ObjectKind("batch", "v1", "jobs", "Job", has_status=True)
DEPLOYMENTS = ObjectKind("apps", "v1", "deployments", "Deployment", has_status=True, scales=True)
REPLICA_SETS = ObjectKind("apps", "v1", "replicasets", "ReplicaSet", has_status=True, scales=True)
LEASES = ObjectKind("coordination.k8s.io", "v1", "leases", "Lease")
BUDGETS = ObjectKind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", has_status=True)
NETWORK_POLICIES = ObjectKind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = ObjectKind("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = ObjectKind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = ObjectKind(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_BINDINGS = ObjectKind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
DEFINITIONS = ObjectKind(
    *("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    namespaced=False,
    has_status=True,
)

KINDS = (
    *(NAMESPACES, NODES, PODS, SERVICES, SECRETS, CONFIG_MAPS, EVENTS, CLAIMS, ACCOUNTS),
    *(QUOTAS, LIMITS),
    *(JOBS, DEPLOYMENTS, REPLICA_SETS, LEASES, BUDGETS, NETWORK_POLICIES, ROLES, BINDINGS),
    *(CLUSTER_ROLES, CLUSTER_BINDINGS, DEFINITIONS),
)


def named(api_version: str, name: str) -> ObjectKind | None:
    """Return the kind of that `apiVersion` and `kind`, or None."""
    found = (kind for kind in KINDS if (kind.api_version, kind.name) == (api_version, name))
    return next(found, None)
