"""What plugins give: rule tables, executors, dialects, expansions. Records only."""
