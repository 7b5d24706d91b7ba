"""The ASGI application: HTTP goes to Django, sockets go to chat."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
http_application = get_asgi_application()  # before what follows: it sets up the apps

from django.conf import settings  # noqa: E402

from chat.websocket.routing import websocket_application  # noqa: E402
from project.proxy import TrustedProxy  # noqa: E402

application = TrustedProxy(
    ProtocolTypeRouter({"http": http_application, "websocket": websocket_application}),
    settings.TRUSTED_PROXY,
)
