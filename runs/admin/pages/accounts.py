"""Accounts: Django's own pages. Deleting an account also ends and deletes all that it owns."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth import admin as auth_admin  # registers the model that is registered anew here
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Count

from runs import operators
from runs.admin.actions.deletion import DeletesThroughEngine
from runs.admin.formatting import count
from runs.models import Run, Session
from runs.states import ACTIVE


class AccountAdmin(DeletesThroughEngine, auth_admin.UserAdmin):
    """Accounts. Deleting one deletes its sessions first."""

    class Media:
        css = {"all": ["admin/console.css"]}

    async def delete_one(self, actor: AbstractBaseUser, key: Any, reason: str) -> None:
        await operators.delete_user(actor, key, reason)

    def what_goes(self, chosen: Sequence[Any]) -> list[tuple[Any, str, str]]:
        keys = [user.pk for user in chosen]
        owned = Session.objects.filter(owner__in=keys).values_list("owner")
        sessions_of = dict(owned.annotate(sessions=Count("*")))
        active_of = Counter(
            Run.objects.filter(status__in=ACTIVE, session__owner__in=keys).values_list(
                "session__owner", flat=True
            )
        )
        rows_of_page = []
        for user in chosen:
            sessions = count(sessions_of.get(user.pk, 0), "session")
            words = f"{sessions} with all runs, logs and checkpoints, and the account's API tokens."
            if active := active_of[user.pk]:
                words += f" Cancelled first: {count(active, 'active run')}."
            rows_of_page.append((user, user.get_username(), words))
        return rows_of_page


admin.site.unregister(get_user_model())
admin.site.register(get_user_model(), AccountAdmin)
