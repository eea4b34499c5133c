# Two images: `control` (etcd and the controller, no torch) and `worker` (agent and training).
#
#   docker build --target control -t spotelastic-control .
#   docker build --target worker  -t spotelastic-worker .

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/spotelastic
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY infra infra
COPY checkpoints checkpoints
COPY spotelastic spotelastic

FROM base AS control
RUN pip install -c constraints.txt .
# The etcd of the package index is for one machine only (see docs/decisions/0001-etcd-client.md):
# members of a cluster run the release that spotelastic/aws/provisions.py names.
ARG ETCD=3.5.21
ADD --checksum=sha256:adddda4b06718e68671ffabff2f8cee48488ba61ad82900e639d108f2148501c \
  https://github.com/etcd-io/etcd/releases/download/v${ETCD}/etcd-v${ETCD}-linux-amd64.tar.gz /tmp/
RUN tar -xzf /tmp/etcd-v${ETCD}-linux-amd64.tar.gz -C /usr/local/bin --no-same-owner \
      --strip-components=1 --wildcards '*/etcd' '*/etcdutl' \
 && rm /tmp/etcd-v${ETCD}-linux-amd64.tar.gz
RUN useradd --create-home spotelastic
USER spotelastic
ENTRYPOINT ["spotelastic"]
CMD ["boot"]

FROM base AS worker
ARG TORCH=torch==2.13.0
RUN pip install ${TORCH} && pip install -c constraints.txt '.[train]'
# Training code is unpacked and snapshots are kept as this user: run with --ipc=host or a
# --shm-size that holds three copies of a node's state.
RUN useradd --create-home spotelastic
USER spotelastic
ENTRYPOINT ["spotelastic"]
CMD ["boot"]
