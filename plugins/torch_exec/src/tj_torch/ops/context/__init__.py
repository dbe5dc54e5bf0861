"""Dynamic context of calls: grad mode, inference mode, autocast and its cache."""
