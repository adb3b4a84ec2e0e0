"""Tasks of all kinds: quick and slow ones, some that fail, and some that wait for each other."""

from __future__ import annotations

import time

from django_redis_messaging import Semaphore
from django_redis_messaging.tasks import periodic, task

#: invoices that the printer prints at a time
PRINTERS = 2


@task(queue_name="emails", rate="4/s", tags=("newsletter:{issue}",))
def send_newsletter(customer: str, issue: int) -> str:
    """Send a newsletter. The mail provider allows four a second."""
    time.sleep(0.02)
    return f"{customer}: issue {issue}"


@task(queue_name="stock", lock="shelf {shelf}", timeout=60)
def count_shelf(shelf: int, seconds: float = 2.0) -> int:
    """Count what is on a shelf. One call at a time for each shelf."""
    time.sleep(seconds)
    return shelf * 12


@task(queue_name="stock", max_attempts=3, backoff=3)
def order_from(supplier: str, item: str, *, api_key: str = "") -> str:
    """Order an item. The server of one supplier doesn't answer."""
    if supplier == "Nowhere Ltd.":
        raise ConnectionError(f"{supplier} did not answer.")
    return f"{item} from {supplier}"


@task(queue_name="invoices", concurrency=PRINTERS)
def print_invoice(number: int) -> str:
    """Print an invoice; waits for a printer."""
    with Semaphore("printers", PRINTERS, timeout=30):
        time.sleep(0.5)
    return f"invoice-{number}.pdf"


@task(queue_name="reports")
def write_report(month: str, pages: int) -> str:
    """Write the report of a month. The queue is paused in the demo."""
    return f"{month}: {pages} pages"


@periodic(every=60)
@task(queue_name="stock")
def check_stock() -> str:
    """Look for items that are sold out."""
    return "nothing is sold out"
