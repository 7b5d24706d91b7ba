"""Titles: from the user's words at once, better ones later, the user's own for good."""

import pytest

from runs import operations
from runs.agents import agent
from runs.foundation.database import in_thread
from runs.models import Session
from tests.fakes import Hold, Round, ScriptedModel, fan_out_graph, numbered, say
from tests.runs.waiting import at_rest, terminal, until


def with_titles(model, generate):
    @agent(generate_title=generate)
    def build():
        return fan_out_graph(model)

    return build


@pytest.fixture
async def session(engine, alice):
    return (await in_thread(operations.create_session, alice))["id"]


async def test_a_generated_title_replaces_the_words_once(engine, alice, serve, session):
    asked = []

    async def generate(user, answer):
        asked.append((user, answer))
        return "Generated"

    serve(with_titles(ScriptedModel(say("An answer."), say("Another.")), generate))
    await terminal((await in_thread(operations.start_turn, alice, session, "first words"))["id"])
    await until(lambda: Session.objects.get().title == "Generated")
    run = await in_thread(operations.start_turn, alice, session, "second words")
    ended = await terminal(run["id"])

    assert asked == [("first words", "An answer.")]
    assert ended.llm_calls == 1


async def test_a_title_of_the_users_own_is_never_overwritten(engine, alice, serve, session):
    model = ScriptedModel(Round(numbered(2), Hold("rename"), numbered(2)))

    async def generate(user, answer):
        return "Generated"

    serve(with_titles(model, generate))
    run = await in_thread(operations.start_turn, alice, session, "words")
    await model.script.gate("rename").reached()
    await in_thread(operations.rename_session, alice, session, "Mine")
    model.script.gate("rename").open()
    await terminal(run["id"])
    await at_rest(engine)

    assert (await in_thread(Session.objects.get)).title == "Mine"


async def test_a_first_turn_that_is_cancelled_keeps_the_users_words(engine, alice, serve, session):
    model = ScriptedModel(Round(numbered(2), Hold("stop"), numbered(2)))

    async def generate(user, answer):
        raise AssertionError("there is no answer to make a title from")

    serve(with_titles(model, generate))
    run = await in_thread(operations.start_turn, alice, session, "the user's words")
    await model.script.gate("stop").reached()
    await in_thread(operations.cancel_run, alice, run["id"])
    await terminal(run["id"])

    assert (await in_thread(Session.objects.get)).title == "the user's words"
