"""Checkpoints that lose nothing: what one is on disk (`manifest`, `folder`), when to save (`interval`, `stops`), and who saves."""
