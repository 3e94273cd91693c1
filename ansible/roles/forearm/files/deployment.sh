#!/bin/sh
# What is deployed - settings, variables, unit, image - and the deployment before it, which is kept for the way back.
#   deployment.sh keep ETC      copy what is deployed, before it is written anew
#   deployment.sh settle ETC    if something was written, the copy is the deployment before, and it says "another one"
#   deployment.sh swap ETC      the deployment before and this one change places
#   deployment.sh forget ETC    there is no way back
set -eu
cd "$2"
unit=/etc/systemd/system/forearm.service
files="config.yaml forearm.env deployed.json image"
case $1 in
  keep)
    # One that is there already is of a run that was interrupted, and still what was deployed before.
    [ -e image ] && [ ! -e kept ] || exit 0
    mkdir -m 700 kept
    # shellcheck disable=SC2086  # files are words
    cp -p $files $unit kept
    ;;
  settle)
    [ -e kept ] || exit 0
    for file in $files $unit; do
      cmp -s "$file" "kept/${file##*/}" || another=yes
    done
    [ -n "${another-}" ] || { rm -rf kept; exit 0; }
    rm -rf before
    mv kept before
    echo "another one"
    ;;
  swap)
    [ -e before ] || { echo "There is no deployment before this one." >&2; exit 1; }
    mkdir -m 700 taken
    # shellcheck disable=SC2086
    mv $files $unit taken
    # shellcheck disable=SC2086
    (cd before && mv $files ..)
    mv "before/${unit##*/}" $unit
    rmdir before
    mv taken before
    cat image
    ;;
  forget) rm -rf before ;;
esac
