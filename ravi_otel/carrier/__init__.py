"""Cross from one process to another: what a run takes along, what it lends, and what it gets back.

Outbound, the facts of the current scope and a signed ceiling travel in the `baggage` header to hosts that are listed, and to no other.
Inbound they only tighten, and are believed only when their signature checks or the peer is trusted.
"""
