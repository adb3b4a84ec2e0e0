"""Deliveries of sold items: jobs that change the same rows as the market's page."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import connection, transaction
from django.utils import timezone
from people.background import start_thread

from django_redis_messaging import DelayQueue, Job, fenced_update

from .locks import item_lock
from .models import Item, Sale

logger = logging.getLogger(__name__)

#: seconds that a delivery may take
LEASE = 60
#: seconds until a delivery whose item is locked is tried again
RETRY_DELAY = 1
#: seconds between two checks whether to stop
STOP_INTERVAL = 1

queue = DelayQueue("deliveries")


def send(sale: Sale) -> None:
    """Start the delivery of a sale. A repeat changes nothing while it waits or runs."""
    queue.push({"item": sale.item_id, "sale": sale.pk}, job_id=f"sale-{sale.pk}")


def send_undelivered() -> None:
    """Start the deliveries that were lost by a crash between the commit of a sale and the push of its job."""
    for sale in Sale.objects.filter(delivered_at=None):
        send(sale)


def deliver_next(wait: float = 0) -> list[Job]:
    """Take the next job, if any is ready within `wait` seconds; returns it if it is done."""
    return [job for job in queue.pop(1, lease=LEASE, wait=wait) if _deliver(job)]


def _deliver(job: Job) -> bool:
    """Deliver the item of the job. If its lock is taken, the job waits without losing an attempt."""
    lock = item_lock(job.data["item"])
    if lock.acquire(blocking=False):
        try:
            done = _store(job.data["sale"], lock.fence)
        finally:
            lock.release()
        if done:
            queue.ack(job)
            return True
    queue.release(job, delay=RETRY_DELAY)
    return False


@transaction.atomic
def _store(sale_id: int, fence: int) -> bool:
    """Move the item to its owner. False, with nothing changed, if a later holder of the lock has written."""
    sale = Sale.objects.select_related("item").get(pk=sale_id)
    item = Item.objects.filter(pk=sale.item_id)
    if not fenced_update(item, "fence", fence, location=sale.item.owner):
        return False
    Sale.objects.filter(pk=sale_id, delivered_at=None).update(delivered_at=timezone.now())
    return True


def start() -> Callable[[], None]:
    """Start a thread that delivers; returns a function that stops it."""
    return start_thread(_run, "market-deliveries")


def _run(stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            deliver_next(wait=STOP_INTERVAL)
        except Exception:
            logger.exception(
                "Delivering failed, continuing in %s s; a job comes again when its lease ends.", RETRY_DELAY
            )
            stop.wait(RETRY_DELAY)
    connection.close()
