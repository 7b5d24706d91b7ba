"""Accounts: Django's own pages, but for deleting, which ends and takes along all that an account owns."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth import admin as auth_admin  # registers the model that is registered anew here
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Count, Q

from runs import operators
from runs.admin.deleting import DeletesThroughEngine
from runs.admin.wording import count
from runs.models import Session
from runs.states import ACTIVE


class AccountAdmin(DeletesThroughEngine, auth_admin.UserAdmin):
    """Accounts. Deleting one deletes its sessions first."""

    class Media:
        css = {"all": ["admin/runs/console.css"]}

    async def delete_one(self, actor: AbstractBaseUser, key: Any, reason: str) -> None:
        await operators.delete_user(actor, key, reason)

    def what_goes(self, chosen: Sequence[Any]) -> list[tuple[Any, str, str]]:
        rows = (
            Session.objects.filter(owner__in=[user.pk for user in chosen])
            .values("owner")
            .annotate(
                sessions=Count("id", distinct=True),
                active=Count("runs", filter=Q(runs__status__in=ACTIVE), distinct=True),
            )
        )
        counted = {row["owner"]: row for row in rows}
        told = []
        for user in chosen:
            row = counted.get(user.pk, {"sessions": 0, "active": 0})
            sessions, active = count(row["sessions"], "session"), count(row["active"], "active run")
            words = f"{sessions} with all runs, logs and checkpoints, and the account's API tokens."
            if row["active"]:
                words += f" Cancelled first: {active}."
            told.append((user, user.get_username(), words))
        return told


admin.site.unregister(get_user_model())
admin.site.register(get_user_model(), AccountAdmin)
