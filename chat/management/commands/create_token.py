"""Print a new API token."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from chat.access import tokens
from runs.foundation.values import clean


class Command(BaseCommand):
    help = "Prints a new API token of a user's, and nothing else."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, username: str, **options: Any) -> str:
        users = get_user_model()
        try:
            user = users._default_manager.get_by_natural_key(clean(username))
        except users.DoesNotExist:
            raise CommandError(f"There is no user named {username}.") from None
        if not user.is_active:
            raise CommandError(f"The account of {username} is deactivated, so a token could not be used.")
        return tokens.create_token(user, name="create_token")
