"""The command line ``tj``."""
