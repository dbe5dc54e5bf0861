"""The core's own passes: dead code, common subexpressions, claiming."""
