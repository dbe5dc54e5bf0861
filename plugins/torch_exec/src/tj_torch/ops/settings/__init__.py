"""Process-wide settings that operations depend on."""
