#!/usr/bin/env bash
# Compare BASE with the checked-out tree. Writes the comparison to the job's summary and to $RUNNER_TEMP/diagram-diff.md.
set -euo pipefail

body="$RUNNER_TEMP/diagram-diff.md"
table=()
[ -z "${TABLE:-}" ] || table=(--table "$TABLE")
git cat-file -e "$BASE^{commit}" 2>/dev/null || git fetch --quiet --no-tags --depth=1 origin "$BASE"

status=0
fsm-agent diagram diff "$BASE" . "${table[@]}" --format comment --exit-code >"$body" || status=$?
case "$status" in
0) changed=false ;;
1) changed=true ;;
*) exit "$status" ;;
esac
echo "changed=$changed" >>"$GITHUB_OUTPUT"
cat "$body" >>"$GITHUB_STEP_SUMMARY"
