"""The operator's console: what runs, what hangs and why, and what can be done about it.

Its pages read the models; whatever changes something calls ``runs.operators``, as the API does.
"""

from django.contrib import admin

from runs.admin.pages import accounts, audit, cancellations, runs, sessions, workers

admin.site.site_header = admin.site.site_title = "Turnkeeper"
admin.site.index_title = "Operators' console"
admin.site.enable_nav_sidebar = False  # the lists need the width; the way to them is in the header

__all__ = ["accounts", "audit", "cancellations", "runs", "sessions", "workers"]
