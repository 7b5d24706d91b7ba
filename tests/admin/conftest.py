import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests.fakes import Marks, ScriptedModel, plain_graph, tools


@pytest.fixture(autouse=True)
def model(serve, tmp_path):
    """The model behind the default agent; its gates are opened at the end."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def console(transactional_db, olivia):
    """Olivia's browser, logged in."""
    return logged_in(olivia)


@pytest.fixture
def staff(transactional_db, django_user_model):
    """``staff("view_run", ...)`` is the browser of somebody with just these permissions."""

    def hire(*permissions, name="steve"):
        user = django_user_model.objects.create_user(name, password="x", is_staff=True)
        found = Permission.objects.filter(codename__in=permissions)
        assert {permission.codename for permission in found} == set(permissions)
        user.user_permissions.set(found)
        return logged_in(user)

    return hire


def logged_in(user):
    client = Client()
    client.force_login(user)
    return client
