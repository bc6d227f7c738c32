#!/bin/sh
# until_shipped.sh COMMAND ARGS...: runs a training, then lets this machine's helper ship its last steps.
#
# What ends a container or a job step ends the helper with it. The exit code is the training's. Waits until the
# helper has left, which it does once all is stored: 90 s at most, and 10 after a failure, so that a launcher soon
# ends the other ranks. Needs NANSCOPE_SPOOL and NANSCOPE_RUN.
early=
is_over=
trap 'early=1' TERM # it may come before the training's number is known
"$@" &
training=$!
trap 'is_over=1; kill -TERM "$training" 2>/dev/null' TERM
[ -z "$early" ] || kill -TERM "$training" 2>/dev/null
wait "$training"
code=$?
while [ "$code" = 143 ] && [ -n "$is_over" ]; do # a signal has ended the wait, not the training
  is_over=
  wait "$training"
  again=$?
  [ "$again" = 127 ] || code=$again # 127: that was its end after all
done
left=90
[ "$code" = 0 ] || left=10
# An argument of the helper is the run's folder; the brackets keep the pattern from finding itself.
while [ "$left" -gt 0 ] && grep -qszx "$NANSCOPE_SPOOL[/]$NANSCOPE_RUN[^/]*" /proc/[0-9]*/cmdline; do
  sleep 1
  left=$((left - 1))
done
exit "$code"
