"""The memo of expansions: its keys, and expansions brought into a program."""
