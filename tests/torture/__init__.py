"""Try to break it: kill, starve and damage a real broker, then check what it promised."""
