"""The base of the console's admins: their objects are shown, and not edited."""

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.text import capfirst

from runs.admin.formatting import ago, short
from runs.admin.lists.paging import BoundedChangeList, BoundedPaginator

Column: TypeAlias = Callable[[Any, Any], str]


def id_column(title: str) -> Column:
    """A column of a list: the beginning of the id."""
    return admin.display(description=title, ordering="id")(lambda _, row: short(row.id))


def ago_column(title: str, field: str) -> Column:
    """A column of a list: the time that has passed since the moment in ``field``."""
    return admin.display(description=title, ordering=field)(lambda _, row: ago(getattr(row, field)))


def actor_of(request: HttpRequest) -> AbstractBaseUser:
    """The user of the request. The admin site has checked that there is one."""
    return request.user  # type: ignore[return-value]


def allowed(request: HttpRequest, permission: str) -> bool:
    """Whether the user of the request has this permission of the engine."""
    return bool(request.user.has_perm(f"runs.{permission}"))


class ConsoleAdmin(admin.ModelAdmin):
    """A list and pages that add, change and delete nothing."""

    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    page_template = ""
    search_fields = ("pk",)  # shows the field; see get_search_results

    class Media:
        css = {"all": ["admin/console.css"]}

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Whether a filter has this parameter. Django would filter by any field, also by what users wrote."""
        if lookup not in {getattr(one, "parameter_name", "") for one in self.list_filter}:
            raise IncorrectLookupParameters  # Django redirects to the list without it
        return True

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedChangeList]:
        return BoundedChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        title = {"title": capfirst(str(self.opts.verbose_name_plural))}
        return super().changelist_view(request, title | (extra_context or {}))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return queryset.filter(self.search(request, term) if term else Q()), False

    def search(self, request: HttpRequest, term: str) -> Q:
        """The condition on what is found by this term, which is not empty."""
        raise NotImplementedError

    def prepare(self, request: HttpRequest, rows: Any) -> None:
        """Add to the rows of a page what depends on its reader."""

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one object. There is no form on it."""
        found = self.viewed(request, object_id)
        return self.render(request, self.page_template, found, **self.page_context(request, found))

    def viewed(self, request: HttpRequest, object_id: str) -> Any:
        """The object for a page that only shows it. Raises PermissionDenied and Http404."""
        self.check_view(request)
        found = self.get_object(request, object_id)
        if found is None:
            raise Http404
        return found

    def check_view(self, request: HttpRequest) -> None:
        """Raise PermissionDenied for who may not view these objects, and for what is no reading."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied

    def page_context(self, request: HttpRequest, found: Any) -> dict[str, Any]:
        """What the object's own page shows."""
        raise NotImplementedError

    def render(
        self, request: HttpRequest, template: str, found: Model | None = None, **context: Any
    ) -> TemplateResponse:
        """A page of the console."""
        shared = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": found,
            "media": self.media,
            "title": str(found) if found else capfirst(str(self.opts.verbose_name_plural)),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, template, {**shared, **context})

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any
    ) -> HttpResponse | None:
        """Refuse a selection that does not consist of keys, which Django would trust."""
        try:
            for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME):
                self.opts.pk.to_python(chosen)
        except Exception:  # noqa: BLE001 - each kind of key has its own way to refuse
            self.message_user(request, "What was selected does not exist.", messages.ERROR)
            return redirect(request.get_full_path())
        return super().response_action(request, queryset, *args)


def is_uuid(text: str) -> bool:
    """Whether it can be the id of a run, a session, a worker or a cancellation."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True
