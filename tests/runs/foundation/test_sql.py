"""Compiled querysets: what the ORM gives, without building its SQL each time."""

from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs import statements
from runs.foundation import sql
from runs.foundation.sql import Parameter, Statement
from runs.models import Run, Session
from runs.wire import representations

_UNLIKE = ("id", "queue_place", "created_at", "last_event_at")


@pytest.fixture
def sessions(alice, db):
    return [Session.objects.create(owner=alice, agent="assistant", title=str(n)) for n in range(5)]


@pytest.fixture
def built():
    """Counts how often a queryset was built."""
    return []


def test_instances_are_those_of_the_orm(sessions):
    statement = Statement(lambda key: Session.objects.filter(id=key))
    [found] = statement(sessions[1].id)
    expected = Session.objects.get(id=sessions[1].id)
    assert {**vars(found), "_state": None} == {**vars(expected), "_state": None}
    found.title = "changed"
    found.save(update_fields=["title"])
    assert Session.objects.get(id=found.id).title == "changed"


def test_a_run_is_written_if_its_row_is_as_expected(sessions):
    run = Run.objects.create(session=sessions[0], queue_place=1, message_id="m", input="hi")
    [found] = Statement(lambda key: Run.objects.filter(id=key))(run.id)
    found.input = "changed"
    for expected in ({"status": "running"}, {"status": "queued", "claim": 1}, {"input": None}):
        assert not found.write(**expected)
    assert Run.objects.get(id=run.id).input == "hi"
    with CaptureQueriesContext(connection) as queries:
        assert found.write(status="queued", claim=0, answers=None)
    assert len(queries) == 1
    assert Run.objects.get(id=run.id).input == "changed"


def test_what_is_inserted_is_what_save_would_have_made(sessions, alice):
    def made(place):
        values = {
            "input": "hé",
            "stream_modes": ["updates"],
            "answers": {"q": [1, None]},
            "requested_by": alice,
        }
        return Run(session=sessions[0], queue_place=place, message_id="m", **values)

    inserted, saved = made(1), made(2)
    with CaptureQueriesContext(connection) as queries:
        sql.insert(inserted)
    assert len(queries) == 1
    saved.save(force_insert=True)
    stored, expected = (Run.objects.values().get(id=one.id) for one in (inserted, saved))
    assert {**stored, **dict.fromkeys(_UNLIKE)} == {**expected, **dict.fromkeys(_UNLIKE)}
    inserted.input = "changed"
    inserted.save(update_fields=["input"])  # it knows that its row is there
    assert Run.objects.get(id=inserted.id).input == "changed"


def test_it_is_built_once_whatever_the_values(sessions, built):
    def build(key):
        built.append(key)
        return Session.objects.filter(id=key).values_list("title", "id")

    statement = Statement(build)
    assert [statement(one.id) for one in sessions] == [[(one.title, one.id)] for one in sessions]
    assert statement(uuid4()) == []
    assert statement.first(uuid4()) is None
    assert len(built) == 1


def test_lists_of_any_length_share_few_statements(sessions, built):
    def build(keys):
        built.append(len(keys))
        return Session.objects.filter(id__in=keys).order_by("title").values_list("title")

    statement = Statement(build)
    for length in range(6):
        titles = [title for (title,) in statement([one.id for one in sessions[:length]])]
        assert titles == [one.title for one in sessions[:length]]
    assert built == [1, 2, 4, 8]


def test_values_keep_their_places_among_each_other_and_among_constants(sessions, alice, bob):
    statement = Statement(
        lambda owner, title: Session.objects.filter(origin="chat", title=title, owner=owner).values_list(
            "title"
        )
    )
    assert statement(alice.pk, "3") == [("3",)]
    assert statement(bob.pk, "3") == []


@pytest.mark.parametrize(
    "title", ["running", "", "1", "it's", "50 %s", "100%%", "'; --", "gr\u00fcn", "two words"]
)
def test_a_constant_is_what_it_says(sessions, title):
    Session.objects.filter(id=sessions[3].id).update(title=title, last_queue_place=7)
    statement = Statement(
        lambda key: Session.objects.filter(id=key, title=title, last_queue_place=7, last_position__gt=-1)
    )
    assert statement(sessions[3].id) == [sessions[3]]
    assert statement(sessions[2].id) == []


def test_a_status_is_no_parameter_since_sqlite_would_plan_the_statement_anew_each_time(sessions):
    statement = Statement(
        lambda key: Run.objects.filter(session=key, status__in=("queued", "running")).values_list("status")
    )
    statement(sessions[0].id)
    [compiled] = statement._compiled.values()
    assert [type(left) for left in compiled.parameters] == [Parameter]


def test_annotations_come_with_the_instances(sessions):
    Run.objects.create(session=sessions[2], queue_place=1, message_id="m", input="hi")
    statement = Statement(lambda keys: representations.with_status(Session.objects.filter(id__in=keys)))
    keys = [one.id for one in sessions]
    expected = {one.id: one for one in representations.with_status(Session.objects.filter(id__in=keys))}
    found = statement(keys)
    assert len(found) == 5
    for one in found:
        for name in statements.SESSION_STATUS:
            assert getattr(one, name) == getattr(expected[one.id], name)


def test_what_locks_needs_a_transaction_and_has_it(sessions):
    statement = Statement(lambda key: Session.objects.select_for_update().filter(id=key))
    with transaction.atomic():
        assert statement(sessions[0].id) == [sessions[0]]
