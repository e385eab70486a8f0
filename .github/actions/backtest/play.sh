#!/usr/bin/env bash
# Play recorded turns. Writes the report to the job's summary and to $RUNNER_TEMP/backtest.md.
set -euo pipefail
shopt -s nullglob globstar

body="$RUNNER_TEMP/backtest.md"
recordings=(${RECORDINGS:-}) # patterns: what they match
arguments=(${ARGUMENTS:-})
if [ -n "${RECORDINGS:-}" ] && [ "${#recordings[@]}" = 0 ]; then
  echo "no recording matches: $RECORDINGS" >&2
  exit 2
fi

status=0
fsm-agent backtest "${recordings[@]}" "${arguments[@]}" --markdown "$body" || status=$?
case "$status" in
0) failed=false ;;
1) failed=true ;;
*) exit "$status" ;;
esac
changed=true
grep -qF '**All recorded turns take the same moves.**' "$body" && changed=false
printf 'changed=%s\nfailed=%s\n' "$changed" "$failed" >>"$GITHUB_OUTPUT"
cat "$body" >>"$GITHUB_STEP_SUMMARY"
