"""Be a Celery program whose worker forks; it gives itself eight tasks, and each writes down who did what."""

import os
from pathlib import Path

from celery import Celery
from celery.signals import worker_ready

import ravi_otel

HERE = Path(os.environ["TASKS"])
app = Celery("tasks", broker="filesystem://")
folders = {f"data_folder_{way}": str(HERE / "queue") for way in ("in", "out")} | {"control_folder": str(HERE / "control")}
app.conf.update(broker_transport_options={**folders, "polling_interval": 0.02}, worker_hijack_root_logger=False)

ravi_otel.instrument(limits=["tool_calls=5"])


@ravi_otel.tool
def work():
    return "did"


@app.task(ignore_result=True)
def attempt():
    try:
        said = work()
    except ravi_otel.BudgetExhaustedError:
        said = "refused"
    with (HERE / "done").open("a") as file:
        file.write(f"{os.getpid()} {said}\n")


@worker_ready.connect
def give(**_):
    for _ in range(8):
        attempt.delay()
