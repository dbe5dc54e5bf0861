"""Programs with names that a compiler uses itself, compared with eager."""
