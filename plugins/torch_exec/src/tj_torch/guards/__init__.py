"""Guards of compiled entries, one module per kind: text, check, and which of them fails."""
