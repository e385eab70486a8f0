#!/usr/bin/env bash
# Post $RUNNER_TEMP/diagram-diff.md to pull request NUMBER, or bring the earlier comment up to date. Without changes nothing new is said.
set -euo pipefail

marker='<!-- fsm-agent diagram diff -->'
body="$RUNNER_TEMP/diagram-diff.md"
# A comment holds 65,536 characters; the whole comparison is in the job's summary.
if [ "$(wc -c <"$body")" -gt 60000 ]; then
  text="$(sed '/^<details>/,$d' "$body" | head -c 60000 | iconv -f utf-8 -t utf-8 -c)"
else
  text="$(cat "$body")"
fi
text="$marker"$'\n'"$text"

if ! found=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments" \
  --jq ".[] | select(.body | startswith(\"$marker\")) | .id"); then
  echo "::notice::The comparison is in the summary of this job; comments of the pull request cannot be read."
  exit 0
fi
found=$(head -n 1 <<<"$found")
if [ -n "$found" ]; then
  request=(--method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$found")
elif [ "$CHANGED" = true ]; then
  request=(--method POST "repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments")
else
  exit 0
fi
# A pull request from a fork has a token that may only read.
gh api "${request[@]}" --raw-field "body=$text" >/dev/null ||
  echo "::notice::The comparison is in the summary of this job; this token may not comment."
