"""Sessions and turns as files: exported, checked, imported, and written as training data."""
