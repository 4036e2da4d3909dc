"""Fork while a call is under way, have a child end in order, and tell what is held of the budget meanwhile: flight.py LEDGER."""

import http.server
import json
import os
import sys
import threading

import openai

import ravi_otel
from ravi_otel._runtime.state import STATE

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello there"}}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11},
}
arrived, go = threading.Event(), threading.Event()


class Model(http.server.BaseHTTPRequestHandler):
    """Answer the first call when it is told to, and all others at once."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if not arrived.is_set():
            arrived.set()
            go.wait(20)
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def ask(client):
    return client.chat.completions.create(model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": "hi"}])


def state():
    """Give what is used and held of the budget, as the store has it."""
    (account,) = STATE.root.accounts
    if hasattr(STATE.engine.ledger, "read"):
        STATE.engine.ledger.read(account)
    return account.used, account.held


def in_child(act):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        act()
        sys.exit(0)  # in order: with all that is done at an exit
    return os.waitpid(child, 0)[1]


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)
    flying = threading.Thread(target=ask, args=(client,))
    flying.start()
    assert arrived.wait(20), "the call never came"
    told = {"in flight": state()}
    told["a child that does nothing"] = in_child(lambda: None), state()
    told["a child that calls"] = in_child(lambda: ask(client.copy())), state()
    told["a child that takes it down"] = in_child(ravi_otel.uninstrument), state()
    go.set()
    flying.join()
    told["over"] = state()
    print(json.dumps(told))


if __name__ == "__main__":
    with ravi_otel.instrument(limits=["tokens=1000"], ledger=sys.argv[1]):
        main()
