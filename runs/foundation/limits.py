"""The fixed limits of the engine that others meet. What a deployment may change is in the settings.

Lengths are in characters. Those of columns are part of the schema.
"""

TITLE_LIMIT = 200  # of a session; a column
REASON_LIMIT = 500  # of a cancel or of an operator's command; a column
IDEMPOTENCY_KEY_LIMIT = 255  # a column
SEARCH_LIMIT = 200  # of what sessions are searched for
EVENTS_LIMIT = 1000  # events on one page of a run's log

# The name of a tool, which a model may have made up; a column.
TOOL_NAME_LIMIT = 200
# The id of a call or a message in an index; a column. See ``runs.foundation.values.lookup_key``.
ID_LIMIT = 200
# One tool result, error or JSON value in the log.
VALUE_LIMIT = 100_000
# One report of a tool's progress.
PROGRESS_LIMIT = 10_000
