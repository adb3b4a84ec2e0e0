"""Publishes the access log to a file channel, and counts it in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing

from people.background import start_thread

from django_redis_messaging import Aggregator, FileChannel, MessagingError, Report

from .access_log import find_log, parse_line
from .origins import origin_of

logger = logging.getLogger(__name__)

CHANNEL, CONSUMER = "access logs", "traffic"
#: seconds after which another process continues the work of one that was killed
LEASE = 2
#: seconds until a failed consumer is started again
RETRY_DELAY = 1
#: seconds between two checks whether the log has been counted
POLL_INTERVAL = 0.05


def visits() -> Aggregator:
    """The requests by day and origin."""
    return Aggregator("visits")


def channel() -> FileChannel:
    """The channel of the access logs."""
    return FileChannel(CHANNEL)


def publish() -> Report:
    """Publish the log. It is skipped if it was published before, so it is never counted twice."""
    return channel().publish(find_log(), consumers=[CONSUMER])


def count_line(line: bytes) -> tuple[str, str]:
    """The day and the origin of a request."""
    day, address = parse_line(line)
    return day, origin_of(address)


def count_files(stop: threading.Event) -> None:
    """Count each log, wait for the next one, until `stop` is set."""
    with closing(channel().consume(CONSUMER, lease=LEASE, stop=stop)) as files:
        for file in files:
            visits().add_file(file, count_line)
            file.ack()


def waiting() -> int:
    """The number of logs that are not counted yet."""
    stats = channel().stats()
    return stats.files if stats else 0


def wait_until_counted(seconds: float) -> bool:
    """Wait until all logs are counted; False if they are not in time."""
    ends = time.monotonic() + seconds
    while waiting():
        if time.monotonic() > ends:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def start() -> Callable[[], None]:
    """Start a thread that counts; returns a function that stops it."""
    return start_thread(_run, "traffic")


def _run(stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            count_files(stop)
        except MessagingError as error:
            logger.warning("Counting access logs failed, continuing in %s s: %s", RETRY_DELAY, error)
        except Exception:
            logger.exception("Counting access logs failed, continuing in %s s", RETRY_DELAY)
        stop.wait(RETRY_DELAY)
