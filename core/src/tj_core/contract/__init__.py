"""The records that plugins register: rule tables, executors, dialects, expansions."""
