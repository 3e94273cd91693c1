#!/usr/bin/env bash
# Amazon's machine images for Graviton with a kernel of 5.10 or newer, oldest first: KERNEL, a tab, NAME.
#   ansible/files/list-amis.sh [--ids] [AWS-CLI-OPTION...]     --ids: also the image's id; options such as --region eu-central-1
#
# The queries are those of AWS' guide to LLMs on Graviton, for kernel-5.10 and kernel-6.*. Ubuntu 22.04, 24.04 and
# Amazon Linux 2023 all have newer kernels.
set -euo pipefail

fields=Name
[ "${1:-}" != --ids ] || { fields='[Name,ImageId]' && shift; }
command -v aws >/dev/null || { echo "error: there is no aws command; install the AWS CLI and log in" >&2; exit 1; }
for kernel in 5.10 '6.*'; do
  found=$(aws ec2 describe-images --owners amazon --filters "Name=architecture,Values=arm64" \
    "Name=name,Values=*kernel-$kernel*" --query "sort_by(Images, &CreationDate)[].$fields" --output text "$@")
  # Names stand side by side in a line; with ids there is a line for each.
  [ "$fields" = Name ] && found=$(tr '\t' '\n' <<<"$found")
  [ -z "$found" ] || [ "$found" = None ] || sed "s/^/$kernel\t/" <<<"$found"
done
