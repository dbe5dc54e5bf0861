"""tj-autocast: autocast as explicit casts in the program."""
