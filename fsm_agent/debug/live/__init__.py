"""A page that shows a table while its file is written, and writes changes of rows back into the file."""
