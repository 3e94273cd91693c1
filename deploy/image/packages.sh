#!/bin/sh
# Set up the run stage: install Python and tcmalloc (its package has one of two names), add the user and the models' folder.
set -eu
apt-get update
tcmalloc=$(apt-cache pkgnames libtcmalloc-minimal4 | sort | tail -n 1)
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 libstdc++6 ca-certificates "$tcmalloc"
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/log/apt /var/log/dpkg.log
echo "forearm:x:10001:0:forearm:/tmp:/usr/sbin/nologin" >> /etc/passwd
mkdir -p /root/.cache/huggingface
chmod 755 /root /root/.cache
chown 10001:0 /root/.cache/huggingface
chmod 775 /root/.cache/huggingface
