"""The operators' console: what runs, what is stuck and why, and the commands that end it.

Its pages read the models. Whatever changes something calls ``runs.operators``, as the API does.

Imported by the template tags and the project's addresses.
"""

from django.contrib import admin

from runs.admin.pages import accounts, audit, cancellations, runs, sessions, workers

admin.site.site_header = admin.site.site_title = "Turnkeeper"
admin.site.index_title = "Operators' console"
admin.site.enable_nav_sidebar = False  # the lists need the width; the header links to them

__all__ = ["accounts", "audit", "cancellations", "runs", "sessions", "workers"]
