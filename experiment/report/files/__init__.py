"""Files beside the pages: CSV, Markdown, plots."""
