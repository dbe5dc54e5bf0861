"""Calls of jitted programs: entries, misses, fallback."""
