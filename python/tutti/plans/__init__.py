"""Plans in JSON: reading, comparing, minimising, drawing and stepping through them, and measuring what they cost."""
