"""The player of the HTML report: the pool of each arm, block by block and step by step."""
