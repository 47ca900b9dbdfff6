"""Programs that know nothing of ettrain: their own saves go on in the background. `ett run --async-checkpoint` asks for it."""
