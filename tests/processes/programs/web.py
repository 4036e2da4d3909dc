"""Be a small web program, for servers that start several processes: / does one thing that is counted, and says what came of it."""

import os
from urllib.parse import parse_qs

import ravi_otel

ravi_otel.instrument(limits=["tool_calls=6"])
SESSION = ["session.tool_calls=4"]


@ravi_otel.tool
def work():
    return "did"


def attempt(path, query):
    if path == "/who":
        return str(os.getpid())
    session = parse_qs(query).get("session", [None])[0]
    try:
        with ravi_otel.run("request", session_id=session, limits=SESSION if session else ()):
            said = work()
    except ravi_otel.BudgetExhaustedError as error:
        said = f"refused by the {error.scope}"
    return f"{os.getpid()} {said}"


def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [attempt(environ["PATH_INFO"], environ["QUERY_STRING"]).encode()]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = attempt(scope["path"], scope["query_string"].decode()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})
