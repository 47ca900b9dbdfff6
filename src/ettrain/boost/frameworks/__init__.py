"""`ett.Checkpointer` inside frameworks that own the training's loop: transformers' `Trainer`, and Lightning."""
