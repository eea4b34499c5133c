#!/bin/bash
# User data of every instance, control node and worker. Installs the version of spotelastic that
# ran `up` from the cluster's bucket, then runs `spotelastic boot` as long as the instance lives.
set -eEuo pipefail

failed() {
  echo "boot: line $1 of boot.sh failed: $2" >&2
  # The controller finds this message on the console. A worker that cannot join must not be paid
  # for. The group of a control node starts another one, which may succeed.
  systemctl poweroff
}
trap 'failed "$LINENO" "$BASH_COMMAND"' ERR

root=${SPOTELASTIC_ROOT:-} # only tests use another root
home=$root/opt/spotelastic
imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest
token=$(curl -fsS --retry 10 --retry-connrefused -X PUT \
  -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "$imds/api/token")
meta() { curl -fsS --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }

AWS_DEFAULT_REGION=$(meta placement/region)
export AWS_DEFAULT_REGION
role=$(meta tags/instance/spotelastic:role)
boot=s3://$(meta tags/instance/spotelastic:bucket)/$(meta tags/instance/spotelastic:cluster)/boot
get() { aws s3 cp --only-show-errors "$boot/$1" "$2"; }

# Deep learning images have torch in an environment of its own, which stays visible below.
python=$root/opt/pytorch/bin/python
if ! [ -x "$python" ]; then
  python=$(command -v python3.13 || command -v python3.12 || command -v python3.11 || true)
fi
if [ -z "$python" ]; then
  more= # needed to build packages without wheels
  [ "$role" = control ] || more="python3.11-devel git gcc-c++"
  dnf -y -q install python3.11 $more
  python=$(command -v python3.11)
fi
# By default only half of the memory may be shared memory, in which the slots are.
[ "$role" = control ] || mount -o remount,size=85% /dev/shm || true
# /tmp is in memory, and too small for what pip downloads.
export TMPDIR=$home/tmp PIP_RETRIES=10
mkdir -p "$TMPDIR" "$root/etc/systemd/system"
get current "$home/current"
wheel=$(cat "$home/current")

# Control nodes are alike. What the first one installed is stored for later ones, which then need
# no package index.
kept=${wheel%/*}/$role-$(uname -m).tar.gz
if ! { [ "$role" = control ] && get "$kept" "$home/kept" && tar -xzf "$home/kept" -C "$home"; }; then
  "$python" -m venv --clear --system-site-packages "$home/venv"
  own=$("$home/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$own/image.pth"
  get "$wheel" "$home/${wheel##*/}"
  pip() { "$home/venv/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
  pip --no-deps --force-reinstall "$home/${wheel##*/}"
  pip "$home/${wheel##*/}"
  if [ "$role" = worker ] && ! "$home/venv/bin/python" -c 'import torch' 2> /dev/null; then
    get "${wheel%/*}/constraints.txt" "$home/constraints.txt"
    pip -c "$home/constraints.txt" "$home/${wheel##*/}[train]"
  fi
  if [ "$role" = control ]; then
    tar -czf "$home/kept" -C "$home" venv
    aws s3 cp --only-show-errors "$home/kept" "$boot/$kept"
  fi
fi

sed "s|@HOME@|$home|g; s|@IMAGE@|${python%/*}|; s|@REGION@|$AWS_DEFAULT_REGION|" \
  "$home"/venv/lib/python*/site-packages/spotelastic/_infra/boot/spotelastic.service \
  > "$root/etc/systemd/system/spotelastic.service"
systemctl daemon-reload
systemctl enable --now spotelastic
