"""HTTP service: `antipodal serve`, its API and its web page.

`server` starts the workers, `app` has the routes, `engine` and `search` answer them. `auth` checks
API keys, `limits` bounds the resources of a request, and `mounts` serves several models at once.
The service needs the extra `serve`.
"""

from antipodal.service.app import create_app
from antipodal.service.auth import Keys
from antipodal.service.engine import Engine
from antipodal.service.limits import Limits

__all__ = ["Engine", "Keys", "Limits", "create_app"]
