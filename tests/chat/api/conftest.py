import pytest


@pytest.fixture
def program(transactional_db):
    """A client of the API with a token of the given user's: ``program(user)``; with none: ``program()``."""
    from tests.chat.api.programs import Program  # here, since this file is read before Django is set up

    return Program


@pytest.fixture
def as_alice(program, alice):
    return program(alice)


@pytest.fixture
def as_bob(program, bob):
    return program(bob)


@pytest.fixture
def as_charlie(program):
    return program()


@pytest.fixture
def as_olivia(program, olivia):
    return program(olivia)
