"""Post $RUNNER_TEMP/$BODY to the pull request of the event, or update the comment about $ABOUT $SUBJECT.

Without changes ($CHANGED is not "true") nothing new is said. The standard library is all it needs; the token
is in $GH_TOKEN."""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

API = os.environ.get("GITHUB_API_URL", "https://api.github.com")
REPOSITORY = os.environ["GITHUB_REPOSITORY"]
MARKER = f"<!-- fsm-agent {os.environ['ABOUT']} {os.environ.get('SUBJECT', '')} -->"
NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
PAGES = 50


class Stay(urllib.request.HTTPRedirectHandler):
    """No redirect: the token is for this address alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def call(method: str, url: str, body: object = None) -> tuple[Any, str]:
    """The answer and the address of the next page, which is empty on the last one."""
    if not url.startswith(f"{API}/"):
        raise urllib.error.URLError(f"not an address of {API}: {url}")
    request = urllib.request.Request(  # noqa: S310 - the address of the API
        url,
        None if body is None else json.dumps(body).encode(),
        {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GH_TOKEN']}",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
        method=method,
    )
    with urllib.request.build_opener(Stay).open(request, timeout=30) as answer:
        found = NEXT.search(answer.headers.get("Link", ""))
        return json.load(answer), found[1] if found else ""


def earlier(number: int) -> int | None:
    """The id of the comment that this action made before: what a person writes is never overwritten."""
    url = f"{API}/repos/{REPOSITORY}/issues/{number}/comments?per_page=100"
    for _ in range(PAGES):
        comments, url = call("GET", url)
        for one in comments:
            if one["user"]["type"] == "Bot" and (one["body"] or "").startswith(MARKER):
                return int(one["id"])
        if not url:
            return None
    return None


def main() -> int:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text("utf-8"))
    number = int(event["pull_request"]["number"])
    text = Path(os.environ["RUNNER_TEMP"], os.environ["BODY"]).read_text("utf-8")
    body = {"body": f"{MARKER}\n{text}"}
    comments = f"{API}/repos/{REPOSITORY}/issues"
    try:
        known = earlier(number)
        if known is not None:
            call("PATCH", f"{comments}/comments/{known}", body)
        elif os.environ["CHANGED"] == "true":
            call("POST", f"{comments}/{number}/comments", body)
    except (urllib.error.URLError, TimeoutError) as error:
        # A pull request from a fork has a token that may only read.
        print(f"::notice::The report is in the summary of this job; it cannot be a comment ({error}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
