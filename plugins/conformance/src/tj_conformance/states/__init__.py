"""Made-up programs whose state changes between calls: of modules, and of what programs read."""
