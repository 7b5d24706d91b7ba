"""What the product stores beside the engine: the API tokens."""

from django.db import models
from knox.models import AbstractAuthToken
from knox.settings import CONSTANTS


class ApiToken(AbstractAuthToken):
    """One secret of a user's programs. Only its digest is stored; deleting the row revokes it.

    A user has as many as they like. ``expiry`` null means that it does not expire.
    """

    id = models.BigAutoField(primary_key=True)  # names a token in addresses, which a digest should not
    digest = models.CharField(max_length=CONSTANTS.DIGEST_LENGTH, unique=True, editable=False)
    name = models.CharField(max_length=100, blank=True, default="")
    last_used_at = models.DateTimeField(null=True, editable=False)  # kept to the hour, see chat.access.tokens

    class Meta:
        ordering = ["-created"]

    def __str__(self) -> str:
        return self.name or f"Token {self.id}"
