"""Programs whose names are those that a compiler takes itself, compared with eager."""
