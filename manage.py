#!/usr/bin/env python
"""The way to all commands: `python manage.py help` lists them."""

import os
import sys

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from project import secret_key


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    secret_key.may_be_made = sys.argv[1:2] in (["quickstart"], ["cluster"])
    try:
        _ = settings.INSTALLED_APPS  # reads them all; Django itself would go on and name another fault
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
