"""Deletion of sessions and accounts from the console: a page says what goes with them, and asks for a reason.

It does not use the ORM's cascade, which would leave executions and checkpoints behind. It is not one
transaction, so an account of any size can be deleted.
"""

from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from runs.admin.actions.confirmation import ReasonForm
from runs.admin.base import actor_of
from runs.errors import EngineError

# The most sessions or accounts that one action deletes.
LIMIT = 200


class DeletesThroughEngine(admin.ModelAdmin):
    """An admin whose page and action for deleting call an operation of the engine."""

    async def delete_one(self, actor: AbstractBaseUser, key: Any, reason: str) -> None:
        """Delete the object with this key. Raises EngineError."""
        raise NotImplementedError

    def what_goes(self, chosen: Sequence[Any]) -> list[tuple[Any, str, str]]:
        """For each chosen object: itself, its name, and a sentence about what goes with it."""
        raise NotImplementedError

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions = super().get_actions(request)
        if "delete_selected" in actions:
            label = f"Delete selected {self.opts.verbose_name_plural}"
            delete: Any = type(self)._delete_selected
            actions["delete_selected"] = (delete, "delete_selected", label)
        return actions

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        found = self.get_object(request, object_id)
        if not self.has_delete_permission(request, found):
            raise PermissionDenied
        if found is None:
            raise Http404
        return self._confirm_or_delete(request, [found])

    def _delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        if not self.has_delete_permission(request):
            raise PermissionDenied
        chosen = list(queryset[: LIMIT + 1])
        if len(chosen) > LIMIT:
            refusal = (
                f"At most {LIMIT} are deleted at once. Select fewer, or narrow the list with its filters."
            )
            self.message_user(request, refusal, messages.ERROR)
            return None
        return self._confirm_or_delete(request, chosen) if chosen else None

    def _confirm_or_delete(self, request: HttpRequest, chosen: Sequence[Any]) -> HttpResponse:
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_bound and form.is_valid():
            self._delete_all(request, chosen, form.cleaned_data["reason"])
            return redirect(self._back(request))
        name = self.opts.verbose_name if len(chosen) == 1 else self.opts.verbose_name_plural
        context = {
            **self.admin_site.each_context(request),
            "title": f"Delete {name}",
            "opts": self.opts,
            "media": self.media,
            "chosen": self.what_goes(chosen),
            "form": form,
            "checkbox": ACTION_CHECKBOX_NAME,
            "is_action": "action" in request.POST,
            "back": self._back(request),
        }
        return TemplateResponse(request, "admin/actions/delete.html", context)

    def _back(self, request: HttpRequest) -> str:
        """The list for those who may see it, else the front page."""
        may_list = self.has_view_or_change_permission(request)
        return reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist" if may_list else "admin:index"
        )

    def _delete_all(self, request: HttpRequest, chosen: Sequence[Any], reason: str) -> None:
        names = {one.pk: str(one) for one in chosen}
        deleted = 0
        for key, name in names.items():
            try:
                async_to_sync(self.delete_one)(actor_of(request), key, reason)
                deleted += 1
            except EngineError as error:
                self.message_user(request, f"{name} is not deleted: {error.message}", messages.WARNING)
        if deleted:
            what = self.opts.verbose_name if deleted == 1 else self.opts.verbose_name_plural
            self.message_user(request, f"Deleted {deleted} {what}.", messages.SUCCESS)
