"""Programs of this repository's tests as users have tj installed."""
