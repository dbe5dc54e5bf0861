"""Guards of compiled entries, one module per kind: their texts, checks and failures."""
