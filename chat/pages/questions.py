"""What a graph asks, by the shape of its value, as a form; and what was sent with the form, as the answer.

- a text: a text;
- ``{question, options}``: one of the options; without options a text;
- LangChain's requests of its human-in-the-loop middleware, in one question or each in its own: a decision for
  each action;
- LangGraph's HumanInterrupt, one or a list: a response for each;
- what has a JSON Schema, or is one: a field for each property;
- anything else: JSON.

A question has parts, each part some choices, each choice some fields. A path says where in the answer a field
belongs. So an answer that was given before can be shown again.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from chat.pages import fields
from chat.pages.fields import Blank, Field, Kind
from runs.foundation.values import was_cut
from runs.wire import contract
from runs.wire.encoding import pretty

UNKNOWN = "The agent needs an answer to this:"


@dataclass(slots=True)
class Choice:
    """One way to answer."""

    key: str
    label: str
    base: Any  # the answer, to which the fields add
    fields: list[Field] = field(default_factory=list)
    send: str = ""  # the label of the button that sends the fields
    is_main: bool = False  # what most people choose
    chosen: bool = False

    def read(self) -> Any:
        """The answer, from what stands in the fields. Marks what is wrong, and raises ValueError."""
        answer = deepcopy(self.base)
        for one in self.fields:
            one.error = ""
            if not one.text.strip() and one.blank is Blank.LEFT_OUT:
                continue
            if not one.text.strip() and one.blank is Blank.REFUSED and one.kind is not Kind.CHOICE:
                one.error = "This is needed."
                continue
            try:
                answer = _put(answer, one.path, one.read())
            except ValueError as error:
                one.error = str(error)
        if any(one.error for one in self.fields):
            raise ValueError
        return answer

    def fits(self, answer: Any) -> bool:
        """Whether this choice gives such an answer."""
        if isinstance(self.base, Mapping) and "type" in self.base:
            return isinstance(answer, Mapping) and answer.get("type") == self.base["type"]
        return bool(self.fields) or (type(answer) is type(self.base) and bool(answer == self.base))


@dataclass(slots=True)
class Part:
    """One decision of a question."""

    choices: list[Choice]
    title: str = ""  # the action it is about
    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    name: str = ""
    error: str = ""

    @property
    def fields(self) -> list[Field]:
        """Of a part that can be answered in one way only."""
        return self.choices[0].fields if len(self.choices) == 1 else []

    def read(self, posted: Mapping[str, str]) -> Any:
        """The decision. Marks what is wrong, and raises ValueError."""
        key = posted.get(self.name)
        chosen = next((one for one in self.choices if len(self.choices) == 1 or one.key == key), None)
        for choice in self.choices:
            choice.chosen = choice is chosen
            for one in choice.fields:
                one.text = posted.get(one.name, one.text).replace("\r\n", "\n")
        if chosen is None:
            self.error = "Choose one of these."
            raise ValueError
        return chosen.read()

    def fill(self, decision: Any) -> None:
        """Show a decision that was made before."""
        chosen = next((choice for choice in self.choices if choice.fits(decision)), None)
        if chosen is None:
            return
        chosen.chosen = True
        for one in chosen.fields:
            found, value = _get(decision, one.path)
            one.text = ""
            if found:
                one.fill(value)


@dataclass(slots=True)
class Question:
    """One question of a waiting run, ready for a form."""

    id: str
    parts: list[Part]
    text: str = ""
    data: str = ""  # a value that is no text
    wrap: Callable[[list[Any]], Any] = lambda decisions: decisions[0]
    unwrap: Callable[[Any], list[Any]] = lambda answer: [answer]
    name: str = ""

    def give_names(self, name: str) -> None:
        """Name the inputs. Ids are the graph's own strings and stay out of them."""
        self.name = name
        for number, part in enumerate(self.parts):
            part.name = f"{name}-{number}"
            for place, choice in enumerate(part.choices):
                for index, one in enumerate(choice.fields):
                    one.name = f"{part.name}-{place}-{index}"

    def read(self, posted: Mapping[str, str]) -> Any:
        """The answer. Marks what is wrong, and raises ValueError."""
        decisions = []
        for part in self.parts:
            try:
                decisions.append(part.read(posted))
            except ValueError:
                continue
        if len(decisions) < len(self.parts):
            raise ValueError
        return self.wrap(decisions)

    def fill(self, answer: Any) -> None:
        """Show an answer that was given before, as far as it has the form of one."""
        try:
            decisions = self.unwrap(answer)
        except (TypeError, LookupError):
            return
        for part, decision in zip(self.parts, decisions, strict=False):
            part.fill(decision)

    @property
    def errors(self) -> Iterator[tuple[str, str]]:
        """What is wrong, by the name of the input."""
        for part in self.parts:
            if part.error:
                yield part.name, part.error
            for choice in part.choices:
                yield from ((one.name, one.error) for one in choice.fields if one.error)


def of_question(asked: contract.Question) -> Question:
    """The form for a question."""
    value, schema = asked["value"], asked.get("response_schema")
    made = (
        _review(value)
        or _tool_approval(value, schema)
        or _human_interrupts(value)
        or _schema(value, schema)
        or _plain(value)
    )
    made.id = asked["id"]
    return made


def _plain(value: Any) -> Question:
    text = _text_of(value)
    if text is None:
        choice = Choice("", "", None, [Field("", (), Kind.JSON)])
        return Question("", [Part([choice])], text=UNKNOWN, data=pretty(value))
    options = value.get("options") if isinstance(value, Mapping) else None
    if isinstance(options, list) and options:
        return Question(
            "", [Part([Choice(str(option), str(option), option) for option in options])], text=text
        )
    return Question("", [Part([Choice("", "", None, [Field("", (), Kind.TEXT)])])], text=text)


def _text_of(value: Any) -> str | None:
    if value is None:
        return "The agent waits for an answer."
    if isinstance(value, Mapping):
        value = value.get("question")
    return value if isinstance(value, str) else None


# JSON Schema


def _schema(value: Any, schema: Any) -> Question | None:
    """For a value that comes with a schema, has one beside its ``message``, or is one."""
    text = _text_of(value)
    if isinstance(value, Mapping):
        if isinstance(value.get("message"), str):
            text = value["message"]
        if schema is None and text is not None:
            schema = value.get("requestedSchema") or value.get("schema")
        elif schema is None and _is_schema(value):
            schema, text = (
                value,
                str(value.get("description") or value.get("title") or "Please fill this in."),
            )
    if not isinstance(schema, Mapping) or not schema:
        return None
    asked = fields.of_schema(schema)
    if asked[0].path:
        choices = [Choice("", "", {}, asked)]
    elif asked[0].kind is Kind.CHOICE:
        choices = [Choice(shown, shown, option) for shown, option in asked[0].options.items()]
    else:
        asked[0].label = ""
        choices = [Choice("", "", None, asked)]
    data = pretty(value) if text is None else ""
    return Question("", [Part(choices)], text=text or UNKNOWN, data=data)


def _is_schema(value: Mapping[str, Any]) -> bool:
    is_of_object = value.get("type") == "object" and isinstance(value.get("properties"), Mapping)
    return "$schema" in value or is_of_object


# LangChain's human-in-the-loop middleware


def _review(value: Any) -> Question | None:
    """All actions of one message, answered together."""
    if not isinstance(value, Mapping) or not isinstance(value.get("action_requests"), list):
        return None
    configs = value.get("review_configs")
    allowed = {
        config.get("action_name"): config.get("allowed_decisions")
        for config in (configs if isinstance(configs, list) else ())
        if isinstance(config, Mapping)
    }
    parts = [
        _action(action, allowed.get(action.get("name")))
        for action in value["action_requests"]
        if isinstance(action, Mapping)
    ]
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(value["action_requests"]):
        return None
    return Question(
        "",
        found,
        wrap=lambda decisions: {"decisions": decisions},
        unwrap=lambda answer: list(answer["decisions"]),
    )


def _tool_approval(value: Any, schema: Any) -> Question | None:
    """One tool call. Its schema says which decisions are allowed, and what the tool's arguments are."""
    if not isinstance(value, Mapping) or not isinstance(schema, Mapping):
        return None
    if value.get("type") != "tool_approval":
        return None
    arguments: Mapping[str, Any] = {}
    allowed = []
    for branch in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        properties = fields.resolve(branch, schema).get("properties") or {}
        allowed.append((properties.get("type") or {}).get("const"))
        if "edited_action" in properties:
            action = fields.resolve(properties["edited_action"], schema)
            arguments = fields.resolve((action.get("properties") or {}).get("args") or {}, schema)
    part = _action(value, allowed, {**arguments, "$defs": schema.get("$defs", {})})
    return Question("", [part]) if part is not None else None


def _action(action: Mapping[str, Any], allowed: Any, schema: Mapping[str, Any] | None = None) -> Part | None:
    name, args = action.get("name"), action.get("args")
    if not isinstance(name, str) or not isinstance(args, Mapping) or not isinstance(allowed, list):
        return None
    reason = Field("Reason", ("message",), Kind.TEXT, Blank.LEFT_OUT)
    edited = {"type": "edit", "edited_action": {"name": name, "args": {}}}
    choices = {
        "approve": Choice("approve", "Approve", {"type": "approve"}, is_main=True),
        "edit": Choice(
            "edit",
            "Edit",
            edited,
            _arguments(args, ("edited_action", "args"), schema),
            send="Approve with these",
        ),
        "respond": Choice(
            "respond",
            "Respond",
            {"type": "respond"},
            [Field("Answer in place of the tool", ("message",), Kind.TEXT)],
            send="Send answer",
        ),
        "reject": Choice("reject", "Reject", {"type": "reject"}, [reason], send="Reject"),
    }
    told = str(action.get("description") or "").removesuffix(f"\n\nTool: {name}\nArgs: {args}")
    return _part(name, told, args, [choice for key, choice in choices.items() if key in allowed])


def _part(title: str, text: str, args: Mapping[str, Any], choices: list[Choice]) -> Part | None:
    if was_cut(args):  # an edit would send what is left of them
        choices = [choice for choice in choices if choice.key != "edit"]
    shown = {name: value if isinstance(value, str) else fields.as_json(value) for name, value in args.items()}
    return Part(choices, title=title, text=text, arguments=shown) if choices else None


def _arguments(
    args: Mapping[str, Any], path: fields.Path, schema: Mapping[str, Any] | None = None
) -> list[Field]:
    """A field for each argument, and for each one that the schema has beside them."""
    made = [fields.of_value(name, (*path, name), value) for name, value in args.items()]
    if schema and schema.get("properties"):
        more = [one for one in fields.of_schema(schema, path) if one.path[-1] not in args]
        for one in more:
            one.text, one.label = "", one.path[-1]
            one.kind = Kind.TEXT if one.kind is Kind.LINE else one.kind
        made += more
    if not made:
        made = [fields.of_value("Arguments", path, {})]
    return made


# LangGraph's HumanInterrupt


def _human_interrupts(value: Any) -> Question | None:
    requests = value if isinstance(value, list) else [value]
    parts = [_human_interrupt(one) for one in requests if isinstance(one, Mapping)]
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(requests):
        return None
    if isinstance(value, list):
        return Question("", found, wrap=lambda responses: responses, unwrap=list)
    return Question("", found)


def _human_interrupt(request: Mapping[str, Any]) -> Part | None:
    action, config = request.get("action_request"), request.get("config")
    if not isinstance(action, Mapping) or not isinstance(config, Mapping):
        return None
    name, args = action.get("action"), action.get("args")
    if not isinstance(name, str) or not isinstance(args, Mapping):
        return None
    edited = {"type": "edit", "args": {"action": name, "args": {}}}
    inputs = _arguments(args, ("args", "args"))
    choices = {
        "allow_accept": Choice("accept", "Accept", {"type": "accept", "args": None}, is_main=True),
        "allow_edit": Choice("edit", "Edit", edited, inputs, send="Accept with these"),
        "allow_respond": Choice(
            "response",
            "Respond",
            {"type": "response"},
            [Field("Your response", ("args",), Kind.TEXT)],
            send="Send response",
        ),
        "allow_ignore": Choice("ignore", "Ignore", {"type": "ignore", "args": None}),
    }
    allowed = [choice for key, choice in choices.items() if config.get(key)]
    return _part(name, str(request.get("description") or ""), args, allowed)


# Paths


def _put(answer: Any, path: fields.Path, value: Any) -> Any:
    if not path:
        return value
    inner = answer
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return answer


def _get(answer: Any, path: fields.Path) -> tuple[bool, Any]:
    for step in path:
        if not isinstance(answer, Mapping) or step not in answer:
            return False, None
        answer = answer[step]
    return True, answer
