#!/usr/bin/env bash
# Compare BASE with the checked-out tree. Writes the comparison to the job's summary and to $RUNNER_TEMP/diagram-diff.md.
set -euo pipefail

body="$RUNNER_TEMP/diagram-diff.md"
drawn="$RUNNER_TEMP/diagram-diff.mmd"
table=()
[ -z "${TABLE:-}" ] || table=(--table "$TABLE")
git cat-file -e "$BASE^{commit}" 2>/dev/null || git fetch --quiet --no-tags --depth=1 origin "$BASE"

status=0
fsm-agent diagram diff "$BASE" . "${table[@]}" --exit-code >"$body" || status=$?
[ "$status" -le 1 ] || exit "$status"
if [ "$status" = 1 ]; then
  changed=true
  fsm-agent diagram diff "$BASE" . "${table[@]}" --format mermaid >"$drawn"
  {
    printf '\n<details><summary>As a diagram</summary>\n\n```mermaid\n'
    cat "$drawn"
    printf '```\n\n</details>\n'
  } >>"$body"
else
  changed=false
fi
echo "changed=$changed" >>"$GITHUB_OUTPUT"
cat "$body" >>"$GITHUB_STEP_SUMMARY"
