"""Files other than pages: CSV, Markdown, plots."""
