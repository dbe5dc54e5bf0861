"""Memo of expansions: its keys, and the adaptation of entries to a program."""
