"""A scripted LLM provider over HTTP and the language of its scripts; needs nothing of the project."""

from tests.provider.ledger import Call, Ledger
from tests.provider.remote import RemoteProvider, provider_process
from tests.provider.script import (
    CallPiece,
    Disconnect,
    Failure,
    Hold,
    Messages,
    Pause,
    Round,
    Script,
    Silence,
    Text,
    Usage,
    call,
    calls,
    numbered,
    say,
    spelled,
    text,
    words,
)
from tests.provider.server import ScriptedProvider
from tests.provider.signals import Board, Gate
from tests.provider.strict import fault_in

__all__ = [
    "Board",
    "Call",
    "CallPiece",
    "Disconnect",
    "Failure",
    "Gate",
    "Hold",
    "Ledger",
    "Messages",
    "Pause",
    "RemoteProvider",
    "Round",
    "Script",
    "ScriptedProvider",
    "Silence",
    "Text",
    "Usage",
    "call",
    "calls",
    "fault_in",
    "numbered",
    "provider_process",
    "say",
    "spelled",
    "text",
    "words",
]
