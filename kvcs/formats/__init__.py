"""Where caches come from and go to."""
