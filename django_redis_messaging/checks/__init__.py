"""System checks: what is wrong with the settings, the cache alias and the server, and what to do about it.

    messaging.E001  REDIS_MESSAGING is not a dict      messaging.W001  a key of it is unknown
    messaging.E002  a setting has a bad value          messaging.W002  the site's default cache is used
    messaging.E003  a dotted path can't be used        messaging.W003  another cache has the same database
    messaging.E004  the alias is not in CACHES         messaging.W004  its socket timeout is very short
    messaging.E005  its backend is not django-redis
    messaging.E006  its client shards keys             messaging.W009  a handler waits for keys of this app
    messaging.E009  a namespace has two handlers       messaging.W010  a handler waits for an unknown event

Only with `check --deploy` is the server asked:

    messaging.E007  it is too old                      messaging.W005  it can't be asked
    messaging.E008  it evicts any key (allkeys-*)      messaging.W006  it evicts keys that expire (volatile-*)
                                                       messaging.W007  it keeps nothing on disk
                                                       messaging.W008  something could not be looked at
                                                       messaging.W011  it tells a handler nothing
"""

from django.core.checks import register

from .caches import check_alias
from .handlers import check_flags, check_handlers
from .server import check_server
from .settings import check_settings

TAG = "messaging"

register(check_settings, TAG)
register(check_alias, TAG)
register(check_handlers, TAG)
register(check_server, TAG, deploy=True)
register(check_flags, TAG, deploy=True)
