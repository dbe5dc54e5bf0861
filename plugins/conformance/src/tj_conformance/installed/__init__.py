"""The sweeps as users have tj installed: all plugins, no option, regions compiled."""
