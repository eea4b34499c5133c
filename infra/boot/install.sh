# Second part of the boot: installs spotelastic, then runs `spotelastic boot` as long as the instance
# lives. boot.sh has fetched it in the wheel and reads it in, so it has the functions `again`, `meta`
# and `get`, and the variables root, home, infra, role, boot, wheel and file.

# Ends a phase of the boot, whose seconds are told on the console, and to the run by the node.
ended() {
  echo "boot: $1 $((SECONDS - since)) s"
  echo "$1 $((SECONDS - since))" >> "$home/phases"
  since=$SECONDS
}
read -r up _ < /proc/uptime
echo "machine $((${up%.*} - SECONDS))" > "$home/phases"
since=0
ended download

# What the user data says of proxies, package indexes and the encryption of objects holds for the
# node's service, too, and for those of the image that reach the internet by themselves.
told='(https?|no)_proxy|pip_index_url|uv_default_index|aws_server_side_encryption|aws_sse_kms_key_id'
env | grep -iE "^($told)=" > "$home/network" || true
if [ -s "$home/network" ]; then
  for service in amazon-ssm-agent docker; do
    mkdir -p "$root/etc/systemd/system/$service.service.d"
    printf '[Service]\nEnvironmentFile=%s\n' "$home/network" \
      > "$root/etc/systemd/system/$service.service.d/spotelastic.conf"
  done
  again "reload of systemd" systemctl daemon-reload
  systemctl try-restart amazon-ssm-agent docker || true
fi

# Deep learning images have torch in an environment of its own, which stays visible below.
python=$root/opt/pytorch/bin/python
if [ -x "$python" ]; then
  # A new disk fetches each block from S3 when it is first read, and torch has gigabytes of them.
  find "$root"/opt/pytorch/lib/python*/site-packages/{torch/lib,nvidia/*/lib} -type f -print0 \
    2> /dev/null | xargs -0 -r -n 1 -P 16 cat > /dev/null 2>&1 &
else
  python=$(command -v python3.13 || command -v python3.12 || command -v python3.11 || true)
fi
if [ -z "$python" ]; then
  more= # needed to build packages without wheels
  [ "$role" = control ] || more="python3.11-devel git gcc-c++"
  again "installation of Python by dnf" dnf -y -q install python3.11 $more
  python=$(command -v python3.11)
  ended python
fi
# By default only half of the memory may be shared memory, in which the slots are.
if [ "$role" = worker ] && ! again "mount of /dev/shm" mount -o remount,size=85% /dev/shm; then
  echo "boot: snapshots have half of the memory: $(cat "$home/failure")" >&2
  rm "$home/failure"
fi
# /tmp is in memory, and too small for what pip downloads.
export TMPDIR=$home/tmp PIP_RETRIES=5
mkdir -p "$TMPDIR" "$root/etc/systemd/system"

# Nodes of a role and an image are alike. What the first one installed is stored for later ones,
# which then need no package index.
image=
if [ "$role" = worker ]; then
  image=$(meta ami-id)-
fi
kept=${wheel%/*}/$role-$image$(uname -m).tar.gz
to_keep=
if ! { get "$kept" "$home/kept" && tar -xzf "$home/kept" -C "$home"; }; then
  rm -f "$home/failure"
  to_keep=yes
  again "environment" "$python" -m venv --clear --system-site-packages "$home/venv"
  own=$("$home/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$own/image.pth"
  pip() {
    again "pip install" "$home/venv/bin/python" -m pip install -q --disable-pip-version-check "$@"
  }
  # Exactly the packages that were tested. In a release their hashes stand beside them, and pip
  # then takes no file that has another one.
  pip --no-deps -r "$infra/packages.txt"
  pip --no-deps --force-reinstall "$file"
  found='import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)'
  if [ "$role" = worker ] && ! "$home/venv/bin/python" -c "$found" 2> /dev/null; then
    get "${wheel%/*}/constraints.txt" "$home/constraints.txt"
    pip -c "$home/constraints.txt" "$file[train]"
    to_keep= # gigabytes, which the index delivers as fast as the bucket would
  fi
  if [ -n "$to_keep" ] && ! tar -cf - -C "$home" venv | gzip -1 > "$home/kept"; then
    to_keep=
  fi
fi
ended packages

sed "s|@HOME@|$home|g; s|@IMAGE@|${python%/*}|; s|@REGION@|$AWS_DEFAULT_REGION|" \
  "$infra/spotelastic.service" > "$root/etc/systemd/system/spotelastic.service"
again "reload of systemd" systemctl daemon-reload
again "start of spotelastic" systemctl enable --now spotelastic
# The node runs. Whoever comes later installs by itself what could not be stored.
# It is stored once: a node cannot replace what others will run.
keep='import sys; from spotelastic.aws.artifacts.boot_artifacts import keep; keep(*sys.argv[1:])'
if [ -n "$to_keep" ] && ! again "upload of $kept" \
  "$home/venv/bin/python" -c "$keep" "$home/kept" "$boot/$kept"; then
  cat "$home/failure" >&2
fi
rm -f "$home/kept"
