"""What this host lacks or wastes, each with its remedy and how it was found: `forearm doctor`."""
