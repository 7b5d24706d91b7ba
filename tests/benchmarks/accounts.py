"""``python -m tests.benchmarks.accounts N``: make N accounts in the server's database and print their tokens.

Several, since the server limits what one user may open and start.
"""

import json
import sys

import django


def main(count: int) -> None:
    django.setup()

    from django.contrib.auth import get_user_model

    from chat.access.tokens import create_token

    users = [get_user_model().objects.create_user(f"bench{number}") for number in range(count)]
    print(json.dumps([create_token(user, "benchmark") for user in users]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
