"""What can be set: the model of all settings with defaults and bounds, their description, and true words for
errors."""
