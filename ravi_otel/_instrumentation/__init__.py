"""Wrap other people's packages, and nothing more of them than needed.

Where what is:

* a model call of a generated client: `client_packages` lists the clients, each with its profile (`openai`, `anthropic`, `groq` as
  `client_profile.ClientProfile`); `client_seam` wraps what they send with, `outgoing_request` is what they are about to send and what is
  changed of it, `attempt_outcomes` what became of an attempt, `raw_requests` what goes around the wrapper, `http_seam` what leaves
  beyond the request that the client built.
* what is open when the client returns: `streams` follows it, by the methods of its response (`response_methods`) and a copy of its bytes
  (`response_body`); `connections` ends what waits for it.
* connections of many calls: `sockets` finds their classes, `socket_seam` wraps them.
* what an API says, known to no client: `formats/`.
* a program's tools: `tools`. What no wrapper covers: `uncovered`, `uncovered_hosts`, `model_hosts`.
"""
