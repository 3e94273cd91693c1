#!/bin/sh
# docker run IMAGE MODEL --flags is forearm serve MODEL --flags; docker run IMAGE bench ... is forearm bench ...
set -eu
# tcmalloc comes behind what the user preloads: another allocator of theirs is the one that is used.
for library in /usr/lib/*/libtcmalloc_minimal.so.4; do
  case ${LD_PRELOAD-} in
    *tcmalloc*) ;;
    *) [ ! -e "$library" ] || export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$library" ;;
  esac
done
# Secrets that compose or a swarm has put there; an empty file is as none.
[ ! -s /run/secrets/forearm_api_keys ] || export FOREARM_API_KEYS_FILE="${FOREARM_API_KEYS_FILE:-/run/secrets/forearm_api_keys}"
[ ! -s /run/secrets/hf_token ] || export HF_TOKEN_PATH="${HF_TOKEN_PATH:-/run/secrets/hf_token}"
[ $# -eq 0 ] || [ -n "$1" ] || shift # compose's way to name no model
case ${1-} in
  serve | generate | chat | complete | plan | doctor | collect-env | bench | run-batch | health | help | --version) exec forearm "$@" ;;
  sh | bash | python | python3) exec "$@" ;;
  *) exec forearm serve "$@" ;;
esac
