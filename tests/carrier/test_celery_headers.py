"""A task that a real Celery worker takes from its queue goes on with the run that put it there."""

import os
from unittest import mock

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

import ravi_otel
from ravi_otel import continue_run, task_headers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:celery", "ignore::DeprecationWarning:kombu")


@pytest.fixture
def _logging_is_ours():
    """Keep a worker, which takes the whole process for its own, from setting the levels of logging, and the environment."""

    def as_it_is(**_):
        pass

    setup_logging.connect(as_it_is)
    with mock.patch.dict(os.environ):
        yield
    setup_logging.disconnect(as_it_is)


@pytest.fixture
def app(_logging_is_ours):
    app = Celery("carried", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=False, worker_hijack_root_logger=False)

    @app.task(bind=True, name="work")
    def work(self):
        with continue_run(self.request.headers) as run:
            return run.id, run.rejected, [each.remaining for each in run.limits]

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        yield app
    app.close()


def test_a_task_goes_on_with_the_run_that_sent_it_and_one_without_headers_with_its_own(carrying, app):
    with ravi_otel.run("caller", limits=["tokens=100"]) as run:
        sent = app.tasks["work"].apply_async(headers=task_headers())
        plain = app.tasks["work"].apply_async()
    assert sent.get(timeout=30) == [run.id, None, [100]]
    run_id, rejected, limits = plain.get(timeout=30)
    assert run_id != run.id
    assert (rejected, limits) == ("missing", [0, 0])
