"""Ask a person: on the terminal, by a callback, or by a queue that survives a restart.

Where what is:

* `contract` is what whoever asks has to be; `terminal`, `callback` and `queue` are ours; `asking` waits, no longer than the run goes on.
* what is shown: `frozen` writes arguments so that no two look alike, `editing` reads what a person changes, `sentences` say how far it is.
* of the queue: `place` says where its file is and who may use it, `store` keeps requests there, `rows` reads a row that anybody may have
  forged.
"""
