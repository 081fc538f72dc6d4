"""Processes that tests start: each opens the test's run and obeys the lines it reads."""
