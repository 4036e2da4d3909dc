"""Be a web application that calls the model once per request; 429 past a limit."""

import openai


def app(environ, start_response):
    try:
        answer = openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    except Exception as error:
        start_response("429 Too Many Requests", [("content-type", "text/plain")])
        return [type(error).__name__.encode()]
    start_response("200 OK", [("content-type", "text/plain")])
    return [answer.choices[0].message.content.encode()]
