"""A gateway in front of a model server that knows no streams: a stream is refused, anything else is passed
on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from tests.helpers.http_server import Answer, Asked, HttpServer

REFUSAL = {"error": {"message": "streaming is not supported here", "type": "invalid_request_error"}}


class WholeRepliesOnly(HttpServer):
    """``streams``: of each request, in order, whether it asked for a stream."""

    def __init__(self, behind: str) -> None:
        self.streams: list[bool] = []
        opener, kind = urllib.request.build_opener(urllib.request.ProxyHandler({})), "application/json"

        def answer(asked: Asked) -> Answer:
            self.streams.append(bool(asked.body.get("stream")))
            if self.streams[-1]:
                return Answer(400, json.dumps(REFUSAL).encode(), kind)
            request = urllib.request.Request(behind + asked.path, asked.raw, {"Content-Type": kind})
            try:
                with opener.open(request, timeout=60) as response:
                    return Answer(response.status, response.read(), kind)
            except urllib.error.HTTPError as refused:
                with refused:
                    return Answer(refused.code, refused.read(), kind)

        super().__init__(answer)
