"""Elements of pages: SVG, charts, embedded data."""
