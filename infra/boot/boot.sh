#!/bin/bash
# User data of every instance, control node and worker. Fetches the spotelastic that ran `up` from
# the cluster's bucket, and goes on with the install.sh in it, which has no limit of 4,096 characters.
set -eEuo pipefail

root=${SPOTELASTIC_ROOT:-} # only tests use another root
home=$root/opt/spotelastic
mkdir -p "$home"

# Runs a step until it succeeds: again NAME COMMAND... The pauses between its tries get longer. All
# is over before the controller gives the instance up, which it does 15 minutes after the launch.
again() {
  local name=$1 tries=0 pause code left
  shift
  for pause in ${SPOTELASTIC_BOOT_PAUSES:-1 2 4 8 16} end; do
    left=$((720 - SECONDS)) code=0
    timeout "$((left > 0 ? left : 1))" "$@" 2> "$home/stderr" || code=$?
    cat "$home/stderr" >&2
    if [ "$code" = 0 ]; then
      rm -f "$home/failure"
      return 0
    fi
    tries=$((tries + 1))
    echo "$name has failed (tries: $tries, exit code: $code): $(grep . "$home/stderr" | tail -n 1)" \
      > "$home/failure"
    # What the bucket does not have, it will not have later.
    if [ "$pause" = end ] || [ "$left" -le "$pause" ] || grep -q '(404)' "$home/stderr"; then
      return 1
    fi
    sleep "$pause"
  done
}

failed() {
  [ "$BASH_SUBSHELL" = 0 ] || return 0 # the script itself sees that its subshell has failed
  trap - ERR
  echo "boot: $(cat "$home/failure" 2> /dev/null || echo "$1")" >&2
  # The controller finds this message on the console. A worker that cannot join must not be paid
  # for. The group of a control node starts another one, which may succeed.
  systemctl poweroff
  exit 1
}
trap 'failed "line $LINENO of ${BASH_SOURCE##*/} failed: $BASH_COMMAND"' ERR

imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest
token=$(again "token of the metadata service" curl -fsS -m 10 -X PUT \
  -H "X-aws-ec2-metadata-token-ttl-seconds: 3600" "$imds/api/token")
meta() {
  again "metadata $1" curl -fsS -m 10 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"
}
AWS_DEFAULT_REGION=$(meta placement/region)
export AWS_DEFAULT_REGION
role=$(meta tags/instance/spotelastic:role)
bucket=$(meta tags/instance/spotelastic:bucket)
boot=s3://$bucket/$(meta tags/instance/spotelastic:cluster)/boot
get() { again "download of $1" aws s3 cp --only-show-errors "$boot/$1" "$2"; }

get current "$home/current"
wheel=$(cat "$home/current")
file=$home/${wheel##*/}
get "$wheel" "$file"
sum=$(sha256sum "$file")
if [ "${sum:0:16}" != "${wheel%/*}" ]; then
  echo "download of $wheel has failed: its SHA-256 begins with ${sum:0:16}" > "$home/failure"
  false
fi
again "unpacking of $wheel" python3 -m zipfile -e "$file" "$home/wheel"
infra=$home/wheel/spotelastic/_infra/boot
. "$infra/install.sh"
