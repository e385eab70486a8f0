"""A door as a package of its own: ``POST /plain`` begins a turn and answers with its text, for shell scripts.

curl -H "Authorization: Bearer $TOKEN" -d '{"say": "hello"}' http://127.0.0.1:8080/plain
"""

from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from fsm_agent.errors import TurnSuspended
from fsm_agent.extension import Check
from fsm_agent.serve.doors import Door
from fsm_agent.serve.web import caller_of, json_body, route


class PlainSettings(BaseModel, extra="forbid"):
    """``[settings.extensions.plain]``. ``path``: where it answers."""

    path: str = "/plain"


class PlainDoor(Door):
    name = "plain"
    settings = PlainSettings

    def routes(self, service):
        async def answer(request):
            caller, body = caller_of(request), await json_body(request)
            turn = await service.start(caller, body.get("say"), request.headers.get("x-session"))
            try:
                said = (await service.result(caller, turn)).final_response or ""
            except TurnSuspended as waits:
                said = f"waits for {', '.join(one.what for one in waits.pending)}"
            return PlainTextResponse(
                f"{said}\n", headers={"x-session": service.about(caller, turn)["session"]}
            )

        return [route(self.config.path, answer, ["POST"], refuse)]

    def checks(self):
        yield Check("answers at", self.config.path)


def refuse(error):
    return PlainTextResponse(f"{error}\n", error.status)
