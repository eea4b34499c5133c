#!/bin/bash
# User data of every instance, control and worker alike: install the launcher's own spotelastic from
# the cluster's bucket, then run `spotelastic boot` for as long as the instance lives.
set -euo pipefail

imds=http://169.254.169.254/latest
token=$(curl -fsS --retry 10 --retry-connrefused -X PUT \
  -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "$imds/api/token")
meta() { curl -fsS --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }

cluster=$(meta tags/instance/spotelastic:cluster)
bucket=$(meta tags/instance/spotelastic:bucket)
home=/opt/spotelastic
mkdir -p "$home/wheels"

python=$(command -v python3.13 || command -v python3.12 || command -v python3.11 || true)
if [ -z "$python" ]; then
  dnf -y -q install python3.11
  python=$(command -v python3.11)
fi
# On a Deep Learning image torch comes with the image: its packages stay visible.
"$python" -m venv --system-site-packages "$home/venv"
aws s3 cp --only-show-errors --recursive "s3://$bucket/$cluster/boot/" "$home/wheels/"
"$home/venv/bin/pip" install -q "$home"/wheels/*.whl

cat > /etc/systemd/system/spotelastic.service <<UNIT
[Unit]
Description=spotelastic
After=network-online.target
Wants=network-online.target

[Service]
Environment=PATH=$home/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
ExecStart=$home/venv/bin/spotelastic boot
Restart=on-failure
RestartSec=1
KillMode=mixed

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --now spotelastic
