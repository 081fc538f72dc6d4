"""Everything that speaks to Redis: key names, scripts, the call gateway and connections."""
