"""tj-autocast: autocast as explicit casts."""
