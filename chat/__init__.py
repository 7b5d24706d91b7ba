"""The product on top of the engine: the default agent, the pages and the protocols."""
