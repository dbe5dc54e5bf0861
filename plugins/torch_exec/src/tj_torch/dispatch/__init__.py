"""Calls of jitted programs: entries, guards, fallback."""
