"""Messaging for Django on the Redis a site already runs."""

import importlib.util
import typing

__version__ = "0.1.0"

if typing.TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
else:  # hidden from type checkers, for which any name would exist

    def __getattr__(name: str) -> typing.Any:
        """Import the public names at the first use of one of them: pytest imports the package for its plugin,
        pytest_plugin.py, at each start, also in projects that don't use it. Modules are imported alone, so
        that each can be the first one."""
        if importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f".{name}", __name__)
        api = importlib.import_module(".api", __name__)
        globals().update({public: getattr(api, public) for public in ("__all__", *api.__all__)})
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
