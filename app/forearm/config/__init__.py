"""Settings: their flags, environment variables, defaults and units, and the config classes made of them."""
