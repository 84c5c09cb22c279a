"""What an author of pipelines writes: steps, pipelines, and what their functions see and say."""
