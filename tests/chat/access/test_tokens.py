"""API tokens: several for each user, stored as digests, good until they expire or are revoked."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from chat.access import tokens
from chat.models import ApiToken

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_token_is_stored_hashed(alice):
    token = tokens.create_token(alice, "laptop")
    (row,) = ApiToken.objects.values()
    stored = [value for name, value in row.items() if isinstance(value, str) and name != "token_key"]
    assert not any(token[15:] in value for value in stored)
    assert len(row["token_key"]) < len(token) / 3  # the key only says which row to look at
    assert len(row["digest"]) == 128


def test_a_user_has_several_tokens_and_revokes_one_of_them(alice):
    kept, lost = tokens.create_token(alice, "kept"), tokens.create_token(alice, "lost")
    assert [token.name for token in tokens.tokens_of(alice)] == ["lost", "kept"]
    assert tokens.revoke(alice, tokens.tokens_of(alice).get(name="lost").id)
    assert tokens.recognise(lost) is None
    assert tokens.recognise(kept).user == alice


def test_nobody_revokes_or_lists_the_token_of_somebody_else(alice, bob):
    token = tokens.create_token(alice)
    assert not tokens.revoke(bob, tokens.tokens_of(alice).get().id)
    assert list(tokens.tokens_of(bob)) == []
    assert tokens.recognise(token) is not None


def test_a_token_is_good_until_it_expires(alice):
    token = tokens.create_token(alice, expiry=timedelta(hours=1))
    assert tokens.recognise(token) is not None
    ApiToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    assert tokens.recognise(token) is None


def test_a_token_without_expiry_does_not_expire(alice):
    tokens.create_token(alice)
    assert tokens.tokens_of(alice).get().expiry is None


@pytest.mark.parametrize("nonsense", ["", "x", "\ud800", "0" * 64, "\0"])
def test_what_is_no_token_is_not_recognised(alice, nonsense):
    tokens.create_token(alice)
    assert tokens.recognise(nonsense) is None


def test_the_use_of_a_token_is_noted_to_the_hour(alice, django_assert_num_queries):
    token = tokens.create_token(alice)
    tokens.note_use(tokens.recognise(token))
    row = tokens.recognise(token)
    assert timezone.now() - row.last_used_at < timedelta(minutes=1)
    with django_assert_num_queries(0):
        tokens.note_use(row)
    row.last_used_at -= timedelta(hours=2)
    with django_assert_num_queries(1):
        tokens.note_use(row)


def test_the_command_prints_a_token_and_nothing_else(alice):
    out = StringIO()
    call_command("create_token", "alice", stdout=out)
    printed = out.getvalue()
    assert tokens.recognise(printed.strip()).user == alice
    assert printed == printed.strip() + "\n"


@pytest.mark.parametrize("username", ["nobody", "", "ali\0ce"])
def test_the_command_says_when_there_is_no_such_user(db, username):
    with pytest.raises(CommandError, match=r"There is no user named .*\."):
        call_command("create_token", username)


def test_the_command_makes_no_token_that_could_not_be_used(alice):
    alice.is_active = False
    alice.save()
    with pytest.raises(CommandError, match="deactivated"):
        call_command("create_token", "alice")
    assert not ApiToken.objects.exists()
