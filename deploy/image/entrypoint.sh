#!/bin/sh
# `docker run IMAGE MODEL --flags` runs `forearm serve MODEL --flags`; `docker run IMAGE bench ...` runs `forearm bench ...`.
set -eu
# Preload tcmalloc after the user's own libraries, so that an allocator among those takes precedence.
for library in /usr/lib/*/libtcmalloc_minimal.so.4; do
  case ${LD_PRELOAD-} in
    *tcmalloc*) ;;
    *) [ ! -e "$library" ] || export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$library" ;;
  esac
done
# Read secrets that Docker Compose or Swarm has mounted; an empty file counts as no secret.
[ ! -s /run/secrets/forearm_api_keys ] || export FOREARM_API_KEYS_FILE="${FOREARM_API_KEYS_FILE:-/run/secrets/forearm_api_keys}"
[ ! -s /run/secrets/hf_token ] || export HF_TOKEN_PATH="${HF_TOKEN_PATH:-/run/secrets/hf_token}"
[ $# -eq 0 ] || [ -n "$1" ] || shift # Docker Compose passes an empty argument if no model is named
case ${1-} in
  run | serve | pull | list | ls | show | rm | ps | stop | generate | chat | complete | plan | doctor | collect-env | bench | \
    run-batch | quantize | health | completion | help | --version) exec forearm "$@" ;;
  sh | bash | python | python3) exec "$@" ;;
  *) exec forearm serve "$@" ;;
esac
