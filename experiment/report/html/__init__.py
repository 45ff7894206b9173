"""What pages are made of: text in both languages, SVG, charts, data within a page."""
