#!/bin/sh
# host-settings.sh apply TABLE: set each file of the table, and remember what was there; host-settings.sh undo: put that back.
set -eu
memory=/run/forearm-host-settings
case $1 in
  apply)
    before=$(mktemp "$memory.XXXXXX")
    while read -r pattern value; do
      case $pattern in '' | '#'*) continue ;; esac
      for file in $pattern; do
        [ -w "$file" ] || continue
        # A file of choices shows all of them, the one in use in brackets.
        old=$(sed 's/.*\[\(.*\)\].*/\1/' "$file")
        [ "$old" != "$value" ] || continue
        echo "$file $old" >>"$before"
        echo "$value" >"$file" && echo "$file: $old, now $value"
      done
    done <"$2"
    mv "$before" "$memory"
    ;;
  undo)
    [ -e "$memory" ] || exit 0
    while read -r file old; do
      echo "$old" >"$file" && echo "$file: $old again"
    done <"$memory"
    rm "$memory"
    ;;
esac
