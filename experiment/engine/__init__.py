"""The paged engine on torch: pool, attention, model runner, engine loop."""
