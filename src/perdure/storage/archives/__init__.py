"""Where archived runs lie: a folder, or a bucket."""
