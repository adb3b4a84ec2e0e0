"""System checks: settings.py reads only what the site has configured, servers.py and formats.py
query the servers.

    messaging.E001  REDIS_MESSAGING is not a dict      messaging.W001  it has an unknown key
    messaging.E002  a setting has an invalid value     messaging.W002  the site's default cache is used
    messaging.E003  a dotted path can't be used        messaging.W003  another cache uses the same database
    messaging.E004  the alias is not in CACHES         messaging.W004  its socket timeout is too short
    messaging.E005  its backend is not django-redis
    messaging.E006  its client shards keys             messaging.W009  a handler selects keys of this app
    messaging.E009  a namespace has two handlers       messaging.W010  a handler selects an unknown event
    messaging.E010  a schedule is invalid (*)          messaging.W013  a periodic task is never enqueued (*)

    messaging.E012  a rate limit is invalid (*)        messaging.W017  LOGIN_URL leads nowhere
                                                       messaging.W024  RATE_LIMITS has no effect (*)
                                                       messaging.W025  it comes before users are known (*)
                                                       messaging.W027  limits with one name differ (*)

(*) in tasks/occurrences.py and middleware.py, because this package imports nothing of the layers above.

Only in `check --deploy`:

    messaging.W014  middleware that protects the pages is missing
    messaging.W015  a Redis on another machine is reached without TLS
    messaging.W016  a Redis on another machine needs no password
    messaging.W022  the process takes part in a run of tests
    messaging.W026  rate limits count a proxy as the only client (*)

Only `check --deploy` queries the server:

    messaging.E007  it is too old                      messaging.W005  it can't be queried
    messaging.E008  it evicts any key (allkeys-*)      messaging.W006  it evicts keys with a TTL (volatile-*)
                                                       messaging.W007  it doesn't persist data
                                                       messaging.W008  some property could not be read
                                                       messaging.W011  it doesn't publish a handler's events
                                                       messaging.W012  it frees expired keys in the foreground
    messaging.E011  too few replicas for DURABILITY    messaging.W018  a primary has no replica
    messaging.I001  what servers the alias leads to    messaging.W019  failovers begin after the deadline
                                                       messaging.W020  too few Sentinels
                                                       messaging.W021  servers have different versions
                                                       messaging.W023  it has keys of another format
"""

from django.core.checks import register

from .formats import check_formats
from .servers import check_flags, check_server, check_topology
from .settings import (
    begin_run,
    check_alias,
    check_handlers,
    check_login_url,
    check_middleware,
    check_settings,
    check_transport,
    check_variable,
)

TAG = "messaging"

register(begin_run, TAG)
register(check_settings, TAG)
register(check_alias, TAG)
register(check_handlers, TAG)
register(check_login_url, TAG)
register(check_middleware, TAG, deploy=True)
register(check_transport, TAG, deploy=True)
register(check_variable, TAG, deploy=True)
register(check_server, TAG, deploy=True)
register(check_topology, TAG, deploy=True)
register(check_flags, TAG, deploy=True)
register(check_formats, TAG, deploy=True)
