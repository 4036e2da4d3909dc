"""Wrap other people's packages, and nothing more of them than needed.

Where what is:

* a model call of a generated client: `client_packages` lists the clients and the other packages that are wrapped, `client_profile` knows
  what sets each client apart; `client_seam` wraps what they send with, and holds one call with what is changed of its request and each of
  its attempts, also one that goes around the wrapper.
* what is open when the client returns: `streams` follows it; `http_library` knows errors, headers, bodies and connections, and replaces the
  methods of a response.
* a model call of anybody else, where its request passes: `http_seam`, with `httpx_seam`, `urllib3_seam`, `aiohttp_seam` and
  `botocore_seam`; `client_hosts` learns from other packages which hosts their clients were made for.
* connections of many calls: `socket_seam`.
* what an API says, known to no client: `formats/`.
* a program's tools: `tools`. What no wrapper covers: `uncovered`, `uncovered_hosts`, `model_hosts`.
"""
