"""The library over HTTP: `antipodal serve`, its API and the page that uses it.

`engine` answers, in plain Python; `app` maps the routes onto it; `guard` asks for keys; `gate` and
`observe` stand before all (hosts, sizes; logs, metrics); `server` listens. It needs the extra
`serve`.
"""

from antipodal.service.app import create_app
from antipodal.service.engine import Engine
from antipodal.service.keys import Keys
from antipodal.service.limits import Limits

__all__ = ["Engine", "Keys", "Limits", "create_app"]
