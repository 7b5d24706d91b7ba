"""The shapes of questions: which form each gets, and which answer is made from it."""

import functools

import pytest
from langchain.agents.middleware.human_in_the_loop import _decision_schema
from langchain_core.tools import tool
from pydantic import TypeAdapter

from chat.pages.questions import of_question
from runs.foundation.values import to_json

PAY = {"name": "pay", "args": {"amount": 7, "note": "Rent", "tags": ["home"], "urgent": True}}


def form(value, schema=None, answer=None):
    """The form of a question, and the inputs as a browser would send them: ``(question, posted)``."""
    asked = {"id": "q", "value": value} | ({} if schema is None else {"response_schema": schema})
    question = of_question(asked)
    question.give_names("answer-1-0")
    if answer is not None:
        question.fill(answer)
    posted = {}
    for part in question.parts:
        for choice in part.choices:
            if choice.chosen:
                posted[part.name] = choice.key
            posted |= {one.name: one.text for one in choice.fields}
    return question, posted


def inputs(question):
    """Each field, by its label."""
    return {one.label: one for part in question.parts for choice in part.choices for one in choice.fields}


def keys(question):
    return [[choice.key for choice in part.choices] for part in question.parts]


def read(value, typed, schema=None, chosen=None):
    """The answer when these texts were typed, by the label of the field, and these choices made."""
    question, posted = form(value, schema)
    posted |= {inputs(question)[label].name: text for label, text in typed.items()}
    posted |= {part.name: key for part, key in zip(question.parts, chosen or [], strict=False)}
    return question.read(posted)


def errors(value, typed, schema=None, chosen=None):
    """What is wrong then, by the label of the field."""
    question, posted = form(value, schema)
    posted |= {inputs(question)[label].name: text for label, text in typed.items()}
    posted |= {part.name: key for part, key in zip(question.parts, chosen or [], strict=False)}
    with pytest.raises(ValueError, match=r"^$"):
        question.read(posted)
    labels = {one.name: label for label, one in inputs(question).items()}
    return {labels.get(name, "the choice"): said for name, said in question.errors}


def review(*actions, allowed=("approve", "edit", "reject", "respond"), **more):
    return {
        "action_requests": [action | more for action in actions],
        "review_configs": [{"action_name": "pay", "allowed_decisions": list(allowed)}],
    }


# Texts, options, data


@pytest.mark.parametrize("value", ["Which one?", {"question": "Which one?"}, None])
def test_a_text_is_answered_with_a_text(value):
    assert read(value, {"": "The\r\nblue one"}) == "The\nblue one"
    assert errors(value, {"": " "}) == {"": "This is needed."}


@pytest.mark.parametrize("options", [["Yes", "No"], [1, 2], [True, 1], [{"a": 1}, None]])
def test_an_option_goes_back_as_it_was_offered(options):
    value = {"question": "Which one?", "options": options}
    for option in options:
        answer = read(value, {}, chosen=[str(option)])
        assert (answer, type(answer)) == (option, type(option))
    assert errors(value, {}, chosen=["Something else"]) == {"the choice": "Choose one of these."}
    assert errors(value, {}) == {"the choice": "Choose one of these."}


@pytest.mark.parametrize(
    "value",
    [{"anything": [1]}, [1, 2], 7, True, {"question": 7}, {"action_requests": []}, {"options": ["a"]}],
)
def test_anything_else_is_shown_as_data_and_answered_with_json(value):
    question, _ = form(value)
    assert question.data
    assert read(value, {"": '{"a": [1, true, "b"]}'}) == {"a": [1, True, "b"]}
    assert errors(value, {"": "yes"}) == {"": 'This must be JSON: a text needs quotes, as in "yes".'}
    assert errors(value, {"": "[NaN]"}) == {"": 'This must be JSON: a text needs quotes, as in "yes".'}
    assert errors(value, {"": ""}) == {"": "This is needed."}


# LangChain


def test_each_action_of_a_review_gets_the_decisions_allowed_for_it():
    value = review(PAY, {"name": "pay", "args": {}}, allowed=("approve", "reject"))
    question, _ = form(value)
    assert keys(question) == [["approve", "reject"]] * 2
    assert [part.title for part in question.parts] == ["pay", "pay"]
    answer = read(value, {}, chosen=["approve", "reject"])
    assert answer == {"decisions": [{"type": "approve"}, {"type": "reject"}]}
    assert errors(value, {}, chosen=["approve", "edit"]) == {"the choice": "Choose one of these."}
    assert errors(value, {}, chosen=["approve"]) == {"the choice": "Choose one of these."}


def test_arguments_are_edited_one_by_one_and_keep_their_kind():
    value = review(PAY)
    typed = {"amount": "8.5", "note": "", "tags": '["home", "may"]', "urgent": "No"}
    (decision,) = read(value, typed, chosen=["edit"])["decisions"]
    args = {"amount": 8.5, "note": "", "tags": ["home", "may"], "urgent": False}
    assert decision == {"type": "edit", "edited_action": {"name": "pay", "args": args}}
    (unchanged,) = read(value, {}, chosen=["edit"])["decisions"]
    assert unchanged["edited_action"] == PAY
    assert errors(value, {"amount": "much", "tags": "home", "urgent": ""}, chosen=["edit"]) == {
        "amount": "This must be a number.",
        "tags": 'This must be JSON: a text needs quotes, as in "yes".',
        "urgent": "Choose one of these.",
    }


def test_what_was_typed_for_another_decision_does_not_count():
    typed = {"amount": "much", "Reason": "No.", "Answer in place of the tool": ""}
    assert read(review(PAY), typed, chosen=["approve"]) == {"decisions": [{"type": "approve"}]}
    assert read(review(PAY), typed, chosen=["reject"]) == {
        "decisions": [{"type": "reject", "message": "No."}]
    }
    assert errors(review(PAY), typed, chosen=["respond"]) == {
        "Answer in place of the tool": "This is needed."
    }


def test_an_action_without_arguments_is_edited_as_a_whole():
    value = review({"name": "pay", "args": {}})
    (decision,) = read(value, {"Arguments": '{"amount": 1}'}, chosen=["edit"])["decisions"]
    assert decision["edited_action"]["args"] == {"amount": 1}


@pytest.mark.parametrize(
    "value",
    ["a" * 200_000, {"inner": ["a" * 200_000]}, {"a" * 300: 1}, 2**70, b"1",
     functools.reduce(lambda inner, _: [inner], range(30), 1)],
    ids=["text", "inner text", "name", "number", "bytes", "depth"],
)  # fmt: skip
def test_an_action_whose_arguments_were_cut_is_not_edited(value):
    """What would be sent is what was left of them. The other action of the question was not cut."""
    cut = {"name": "pay", "args": {"amount": value, "to": "Bob"}, "description": f"Pay {value}?"}
    assert keys(form(to_json(review(cut, PAY)))[0]) == [
        ["approve", "respond", "reject"],
        ["approve", "edit", "respond", "reject"],
    ]
    config = {"allow_accept": True, "allow_edit": True}
    asked = {"action_request": {"action": "pay", "args": {"amount": value}}, "config": config}
    assert keys(form(to_json(asked))[0]) == [["accept"]]


@pytest.mark.parametrize("value", [["a"] * 200_000, {str(n): n for n in range(50_000)}])
def test_nothing_of_a_review_that_was_cut_in_its_middle_is_edited(value):
    assert keys(form(to_json(review({"name": "pay", "args": {"amount": value}})))[0]) == [[""]]


def test_the_description_of_the_middleware_does_not_repeat_the_arguments():
    told = f"Tool execution requires approval\n\nTool: pay\nArgs: {PAY['args']}"
    question, _ = form(review(PAY, description=told))
    assert question.parts[0].text == "Tool execution requires approval"


@pytest.mark.parametrize(
    "value",
    [
        review(PAY, allowed=()),
        review(PAY, allowed=("consult",)),
        review({"name": "drop", "args": {}}),
        review({"name": "pay", "args": "all"}),
        {"action_requests": [PAY]},
        {"action_requests": [PAY, "pay"], "review_configs": review(PAY)["review_configs"]},
    ],
)
def test_a_review_in_another_form_is_data(value):
    assert form(value)[0].data


@tool
def pay(amount: int, note: str = "", tags: list[str] | None = None) -> str:
    """Pay."""
    raise AssertionError


def test_a_tool_approval_is_answered_with_one_decision_and_offers_all_arguments():
    schema = TypeAdapter(_decision_schema(["approve", "edit", "respond"], "pay", pay)).json_schema()
    value = {
        "type": "tool_approval",
        "tool_call_id": "c",
        "name": "pay",
        "args": {"amount": 1},
        "description": "?",
    }
    question, _ = form(value, schema)
    assert keys(question) == [["approve", "edit", "respond"]]
    assert read(value, {}, schema, ["approve"]) == {"type": "approve"}
    edited = read(value, {"amount": "2", "tags": '["a"]'}, schema, ["edit"])
    assert edited == {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 2, "tags": ["a"]}}}
    alone = TypeAdapter(_decision_schema(["approve"], "pay", pay)).json_schema()
    assert keys(form(value, alone)[0]) == [["approve"]]


# LangGraph


def human_interrupt(**allowed):
    config = {f"allow_{name}": allowed.get(name, False) for name in ("accept", "edit", "respond", "ignore")}
    action = {"action": "send", "args": {"to": "bob"}}
    return {"action_request": action, "config": config, "description": "Send it?"}


def test_a_human_interrupt_gets_its_response():
    value = human_interrupt(accept=True, edit=True, respond=True, ignore=True)
    typed = {"to": "eve", "Your response": "Wait."}
    expected = {
        "accept": None,
        "edit": {"action": "send", "args": {"to": "eve"}},
        "response": "Wait.",
        "ignore": None,
    }
    assert keys(form(value)[0]) == [list(expected)]
    for kind, args in expected.items():
        assert read(value, typed, chosen=[kind]) == {"type": kind, "args": args}
        assert read([value], typed, chosen=[kind]) == [{"type": kind, "args": args}]


def test_a_list_of_human_interrupts_gets_a_list_of_responses():
    value = [human_interrupt(accept=True, ignore=True), human_interrupt(respond=True)]
    assert keys(form(value)[0]) == [["accept", "ignore"], ["response"]]
    answer = read(value, {"Your response": "No."}, chosen=["ignore"])
    assert answer == [{"type": "ignore", "args": None}, {"type": "response", "args": "No."}]


def test_a_human_interrupt_that_allows_nothing_is_data():
    assert form(human_interrupt())[0].data
    assert form([human_interrupt(accept=True), "else"])[0].data


# JSON Schema

SCHEMA = {
    "type": "object",
    "title": "Where to?",
    "properties": {
        "city": {"type": "string", "title": "City", "description": "In Europe"},
        "nights": {"type": "integer", "default": 2},
        "budget": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "class": {"$ref": "#/$defs/Class"},
        "pets": {"type": "boolean"},
        "guests": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "nights", "class"],
    "$defs": {"Class": {"enum": ["first", "second"]}},
}


@pytest.mark.parametrize(
    ("value", "schema", "text"),
    [
        (SCHEMA, None, "Where to?"),
        ({"message": "Where?", "requestedSchema": SCHEMA}, None, "Where?"),
        ({"question": "Where?", "schema": SCHEMA}, None, "Where?"),
        ("Where?", SCHEMA, "Where?"),
        ({"trip": 1}, SCHEMA, "The agent needs an answer to this:"),
    ],
)
def test_a_schema_is_a_form(value, schema, text):
    question, _ = form(value, schema)
    assert question.text == text
    assert question.data == ('{\n  "trip": 1\n}' if "agent" in text else "")
    answer = read(value, {"City": "Rome", "class": "first", "budget": "99.5", "pets": "Yes"}, schema)
    assert answer == {"city": "Rome", "nights": 2, "class": "first", "budget": 99.5, "pets": True}
    assert errors(value, {"City": "", "nights": "2.5", "guests": "Eve"}, schema) == {
        "City": "This is needed.",
        "nights": "This must be a whole number.",
        "class": "Choose one of these.",
        "guests": 'This must be JSON: a text needs quotes, as in "yes".',
    }
    assert inputs(question)["City"].hint == "In Europe"


@pytest.mark.parametrize(
    ("schema", "typed", "chosen", "expected"),
    [
        ({"enum": ["a", "b"]}, {}, ["b"], "b"),
        ({"type": "boolean"}, {}, ["No"], False),
        ({"type": "string"}, {"": "words"}, None, "words"),
        ({"type": "integer"}, {"": " 7 "}, None, 7),
        ({"type": "array"}, {"": "[1]"}, None, [1]),
        ({"$ref": "#"}, {"": "1"}, None, 1),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, {"": "1"}, None, 1),
    ],
)
def test_a_schema_of_a_simple_value_is_one_field(schema, typed, chosen, expected):
    assert read("What?", typed, schema, chosen) == expected


# What was answered before

EDITED = {"type": "edit", "args": {"action": "send", "args": {"to": "eve"}}}


@pytest.mark.parametrize(
    ("value", "schema", "answer"),
    [
        ("What?", None, "Some words"),
        ({"question": "?", "options": [1, 2]}, None, 2),
        ({"any": 1}, None, {"a": [1]}),
        (review(PAY, PAY), None, {"decisions": [{"type": "approve"}, {"type": "reject", "message": "No."}]}),
        (
            review(PAY),
            None,
            {"decisions": [{"type": "edit", "edited_action": {"name": "pay", "args": PAY["args"]}}]},
        ),
        ([human_interrupt(respond=True, accept=True)], None, [{"type": "response", "args": "Wait."}]),
        (
            human_interrupt(edit=True),
            None,
            {"type": "edit", "args": {"action": "send", "args": {"to": "eve"}}},
        ),
        (SCHEMA, None, {"city": "Rome", "nights": 3, "class": "second", "pets": False}),
    ],
)
def test_a_form_shows_an_answer_again_and_gives_the_same(value, schema, answer):
    question, posted = form(value, schema, answer)
    assert question.read(posted) == answer


@pytest.mark.parametrize("answer", [7, "yes", {}, {"decisions": 7}, {"decisions": [7, {}]}, [None]])
@pytest.mark.parametrize(
    "value", [review(PAY), [human_interrupt(edit=True)], SCHEMA, {"question": "?", "options": [1]}]
)
def test_an_answer_in_another_form_is_not_shown(value, answer):
    form(value, answer=answer)
