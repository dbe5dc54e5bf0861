"""Looking at compiled programs: listing, differences, pages, log lines and progress."""
