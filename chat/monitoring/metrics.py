"""GET /metrics, for Prometheus: the counters of this process and the current state.

Every process is scraped for itself; the numbers of runs in the database are the same in each. Numbers tell
about everybody's work, so they are given to callers on this machine and to tokens of staff alone.
"""

from collections.abc import Iterator
from http import HTTPStatus
from ipaddress import ip_address

from django.db import Error as DatabaseError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from chat.access import open_connections, tokens
from chat.access.authentication import bearer_token
from chat.access.open_connections import Kind
from runs import this_process
from runs.foundation.database import in_thread
from runs.metrics import REGISTRY
from runs.models import Cancellation, Run
from runs.states import ACTIVE

ProcessCollector(registry=REGISTRY)


@require_safe
async def metrics(request: HttpRequest) -> HttpResponse:
    """The numbers in Prometheus' text form."""
    refused = await _refusal(request)
    if refused is not None:
        return refused
    here = _in_this_process()  # on the loop, whose these things are
    return HttpResponse(await in_thread(_exposition, here), content_type=CONTENT_TYPE_LATEST)


async def _refusal(request: HttpRequest) -> HttpResponse | None:
    if _is_loopback(request.META.get("REMOTE_ADDR") or ""):
        return None
    token = bearer_token(request.headers.get("Authorization", ""))
    row = await in_thread(tokens.recognise, token) if token else None
    if row is None:
        return HttpResponse(
            "Send the bearer token of a member of staff.\n",
            status=HTTPStatus.UNAUTHORIZED,
            content_type="text/plain",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not row.user.is_staff:
        status = HTTPStatus.FORBIDDEN
        return HttpResponse("Metrics are for staff.\n", status=status, content_type="text/plain")
    return None


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _in_this_process() -> dict[str, tuple[str, int]]:
    """Gauges by name, with what they mean."""
    open_now = open_connections.count()
    engine = this_process.engine
    return {
        "turnkeeper_sockets": ("Open WebSockets.", open_now[Kind.SOCKET]),
        "turnkeeper_streams": ("Open event streams and waiting calls.", open_now[Kind.STREAM]),
        "turnkeeper_followers": ("Followers of sessions and lists.", engine.hub.followers if engine else 0),
        "turnkeeper_executions": ("Runs in execution.", len(engine.executions) if engine else 0),
        "turnkeeper_stragglers": (
            "Executions that were given up on and still work.",
            len(engine.stragglers) if engine else 0,
        ),
    }


def _exposition(here: dict[str, tuple[str, int]]) -> bytes:
    now = CollectorRegistry()
    now.register(_Now(here))
    return generate_latest(REGISTRY) + generate_latest(now)


class _Now(Collector):
    """How things stand: here, and in the database. Without the database the rest is told all the same."""

    def __init__(self, here: dict[str, tuple[str, int]]) -> None:
        self._here = here

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (meaning, value) in self._here.items():
            yield GaugeMetricFamily(name, meaning, value)
        try:
            counted = Run.objects.filter(status__in=ACTIVE).values_list("status").annotate(Count("id"))
            active = dict(counted.order_by())
            pending = Cancellation.objects.filter(settled_at__isnull=True).count()
        except DatabaseError:
            yield GaugeMetricFamily("turnkeeper_database_up", "Whether the database answers.", 0)
            return
        yield GaugeMetricFamily("turnkeeper_database_up", "Whether the database answers.", 1)
        runs = GaugeMetricFamily(
            "turnkeeper_runs_active",
            "Active runs of all processes, by status; those queued are the queue.",
            labels=["status"],
        )
        for status in ACTIVE:
            runs.add_metric([str(status)], active.get(status, 0))
        yield runs
        yield GaugeMetricFamily("turnkeeper_cancellations_pending", "Cancels that have not settled.", pending)
