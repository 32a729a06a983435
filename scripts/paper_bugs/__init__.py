"""The bugs of D3's table III as jobs: alive in today's libraries, or seeded."""
