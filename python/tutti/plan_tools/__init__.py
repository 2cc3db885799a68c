"""Tools over plans in JSON: comparing, minimising, drawing and stepping through them, and measuring what they cost."""
